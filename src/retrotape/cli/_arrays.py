"""Writes named arrays as npz or safetensors, without needing either library."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING

from retrotape.errors import TapeWriteError
from retrotape.io import Replacement

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray]

# Names of dtypes in NumPy and in TensorFlow's extension to it. safetensors has no others that we use.
_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "complex64": "C64",
}
_IN_NPZ = frozenset(("float64", "float32", "float16", "complex64", "complex128"))  # NumPy cannot read back others


def write_arrays(path: str, arrays: Arrays) -> int:
    """Write arrays in the format given by the suffix of the path, and return the size in bytes.

    Raises:
      TapeWriteError: If the format does not support a dtype or a name.
      OSError: If the file cannot be written; an existing file is left unchanged.
    """
    put = FORMS[os.path.splitext(path)[1]]
    with Replacement(path) as output:
        with output.stream() as out:
            put(out, path, arrays)
        output.commit(sync=False)
    return os.path.getsize(path)


def _write_npz(out: IO[bytes], path: str, arrays: Arrays) -> None:
    import numpy as np

    with zipfile.ZipFile(out, "w") as archive:  # np.savez takes names as keyword arguments, so none could be "file"
        for name, array in arrays.items():
            # Lossless: all other dtypes are narrower.
            wide = array if array.dtype.name in _IN_NPZ else array.astype(np.float32)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(wide, order="C"), allow_pickle=False)


def _write_safetensors(out: IO[bytes], path: str, arrays: Arrays) -> None:
    header: dict[str, object] = {}
    at = 0
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))  # keeps each one aligned
    for name, array in ordered:
        if name == "__metadata__" or array.dtype.name not in _SAFETENSORS:
            problem = f"safetensors has no {array.dtype.name} and no tensor named __metadata__, got {name!r}"
            raise TapeWriteError(path, problem, "Write an npz: `-o grads.npz`.")
        shape, end = list(array.shape), at + array.nbytes
        header[name] = {"dtype": _SAFETENSORS[array.dtype.name], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    for _, array in ordered:
        out.write(array.tobytes())


FORMS: dict[str, Callable[[IO[bytes], str, Arrays], None]] = {".npz": _write_npz, ".safetensors": _write_safetensors}
