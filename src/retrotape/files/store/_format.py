"""Names, dtypes and limits of the format, as in `FORMAT.md`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Union

from retrotape.ir import DTYPE_NAMES

FORMAT = "tape/1"
# What a reader has to support beyond tape/1. A new feature of the format adds its name here.
FEATURES = frozenset({"blobs", "shards"})

ALIGN = 64  # TensorFlow's zero-copy import aborts the process if an address is not a multiple of it
PIECE = 1 << 20  # bytes hashed and written at a time, so that they are still in the cache

TAPE = "tape.json"
PROGRAM = "program.txt"
FUNCTIONS = "functions.json"
OPDEFS = "opdefs.pb"
ORDER = (PROGRAM, FUNCTIONS, OPDEFS)  # after TAPE; then all others by name, then the tensors by name

# Lower case only, so that two names never clash on a file system that ignores case; no folders, no leading dot.
ENTRY_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}(?:\.[a-z0-9]{1,15})?")
TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@#+-]{0,199}")
SHA256 = re.compile(r"[0-9a-f]{64}")

PAD = "pad/"  # tensors of zeros that fill the gaps up to the next multiple of ALIGN
STRING_OFFSETS, STRING_DATA = "s/off/", "s/dat/"  # the two parts of a string tensor
RESERVED = (PAD, "s/")

RANK_LIMIT = 254  # TensorFlow's own
SIZE_LIMIT = 2**63 - 1

# TensorFlow's name: bytes of one element, and its name in safetensors. Where that has no such dtype, the bytes are
# stored as U8 with one more dimension, and only tape.json has the dtype.
_DTYPES: dict[str, tuple[int, str | None]] = {
    "float16": (2, "F16"),
    "float32": (4, "F32"),
    "float64": (8, "F64"),
    "bfloat16": (2, "BF16"),
    "float8_e5m2": (1, "F8_E5M2"),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e4m3fnuz": (1, None),
    "float8_e4m3b11fnuz": (1, None),
    "float8_e5m2fnuz": (1, None),
    "int8": (1, "I8"),
    "int16": (2, "I16"),
    "int32": (4, "I32"),
    "int64": (8, "I64"),
    "uint8": (1, "U8"),
    "uint16": (2, "U16"),
    "uint32": (4, "U32"),
    "uint64": (8, "U64"),
    "bool": (1, "BOOL"),
    "complex64": (8, "C64"),
    "complex128": (16, None),
    "int4": (1, None),  # one element a byte, as in memory
    "uint4": (1, None),
    "int2": (1, None),
    "uint2": (1, None),
    "qint8": (1, None),
    "quint8": (1, None),
    "qint16": (2, None),
    "quint16": (2, None),
    "qint32": (4, None),
}
ITEM_BYTES = {name: size for name, (size, _) in _DTYPES.items()}
STRING = "string"
# Resources and variants are the only others: they are not data.
STORABLE = frozenset({name for name in DTYPE_NAMES.values() if name in ITEM_BYTES} | {STRING})

Buffer = Any  # what `memoryview` takes
Data = Union[Buffer, Sequence[bytes], Callable[[], Any]]  # noqa: UP007 - evaluated on Python 3.10


class Stored(NamedTuple):
    """A tensor to be saved.

    Attributes:
      name: Unique in its tape; letters, digits and `_ . / : @ # + -`, not beginning with `s/` or `pad/`.
      dtype: TensorFlow's name for it, such as "bfloat16".
      shape: All dimensions known.
      data: Its elements, little-endian and in row-major order, as anything with the buffer protocol; or a function
        without arguments that returns that, called once, when the tensor is written. For strings a list of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Data


class Sized(Protocol):
    """Anything with the dtype, shape and size of a tensor."""

    @property
    def dtype(self) -> str:
        """TensorFlow's name for the type of one element."""

    @property
    def shape(self) -> tuple[int, ...]:
        """All dimensions."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""


class TensorInfo(NamedTuple):
    """What is known of a tensor before it is read.

    The sha256 of a string tensor is that of the two digests, one after the other, of its offsets and its data.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    sha256: str


class Limits(NamedTuple):
    """Limits beyond which a reader refuses a tape; all sizes in bytes.

    Attributes:
      json_memory: What `tape.json` and `functions.json` may take in memory, each, as estimated before it is parsed: a
        short text can be a large object. None for no limit.
      json_depth: How deep lists and objects in them are nested.
      program_bytes: `program.txt`.
      functions_bytes: `functions.json`.
      entry_bytes: Any other entry.
      entries: How many entries there are, `tape.json` included.
      header_bytes: The header of the file.
      tensors: How many tensors there are.
      total_bytes: All tensors together, and all values that are alive when they are computed from them; None for no
        limit but the size of the file, and in proportion to that. For a URL also all files that are downloaded.
    """

    json_memory: int | None = 576 << 20
    json_depth: int = 64
    program_bytes: int = 256 << 20
    functions_bytes: int = 256 << 20
    entry_bytes: int = 64 << 20
    entries: int = 32
    header_bytes: int = 100_000_000
    tensors: int = 1_000_000
    total_bytes: int | None = None

    def of_entry(self, name: str) -> tuple[str, int]:
        """Return the limit for an entry other than `tape.json`: the name of the field, and how many bytes it allows."""
        field = {PROGRAM: "program_bytes", FUNCTIONS: "functions_bytes"}.get(name, "entry_bytes")
        return field, getattr(self, field)


DEFAULT_LIMITS = Limits()


def size_of(dtype: str, shape: Sequence[int]) -> int | None:
    """Return how many bytes a tensor has; None where TensorFlow could not even count them.

    >>> size_of("float32", (2, 3)), size_of("int8", (0, 2**62, 2**62))
    (24, None)
    """
    item = ITEM_BYTES[dtype]
    if math.prod(dim for dim in shape if dim) * item > SIZE_LIMIT:
        return None
    return math.prod(shape) * item


def stored_as(dtype: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape as in the header of the file.

    >>> stored_as("complex128", (3,))
    ('U8', (3, 16))
    """
    item, name = _DTYPES[dtype]
    return (name, tuple(shape)) if name else ("U8", (*shape, item))


def in_order(names: Iterable[str]) -> list[str]:
    """Return entries in the order in which they are written."""
    rest = set(names)
    first = [name for name in ORDER if name in rest]
    return [*first, *sorted(rest.difference(first))]


def quoted(value: object) -> str:
    """Return a value from an untrusted file in a form that is safe to print: one line, not long.

    >>> quoted("a" * 50)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'"
    """
    text = ascii(value)
    return text if len(text) <= 41 else f"{text[:37]}...{text[-1]}"
