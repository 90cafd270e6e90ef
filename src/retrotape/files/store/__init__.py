"""Tapes as bytes on a disk: one safetensors file, or a folder and a store. `FORMAT.md` describes both.

Nothing here imports TensorFlow or interprets a program. Everything in a file is checked before it is used; nothing is
unpacked, and nothing in it is run.
"""

from retrotape.files.store._container import Container, open_tape
from retrotape.files.store._format import Limits, Stored, TensorInfo
from retrotape.files.store._manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    Manifest,
    ShardFile,
    check_folder,
    describe_file,
    files_of,
    is_shard_name,
    is_sharded,
    other_shards,
    parse_manifest,
    read_manifest,
    shard_name,
    verify_shards,
    write_manifest,
)
from retrotape.files.store._write import check_target, estimate, write

__all__ = [
    "LARGEST_MANIFEST",
    "MANIFEST",
    "Container",
    "Limits",
    "Manifest",
    "ShardFile",
    "Stored",
    "TensorInfo",
    "check_folder",
    "check_target",
    "describe_file",
    "estimate",
    "files_of",
    "is_shard_name",
    "is_sharded",
    "open_tape",
    "other_shards",
    "parse_manifest",
    "read_manifest",
    "shard_name",
    "verify_shards",
    "write",
    "write_manifest",
]
