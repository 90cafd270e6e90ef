"""Arrays by name as a file that other programs read: npz or safetensors, without either's library."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING

from retrotape.errors import TapeWriteError

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray]

# numpy's names, with those that TensorFlow's own package adds to it. safetensors has no others of ours.
_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "complex64": "C64",
}
_IN_NPZ = frozenset(("float64", "float32", "float16", "complex64", "complex128"))  # others it could not read back


def write_arrays(path: str, arrays: Arrays) -> int:
    """Write arrays in the form that the ending of the path names, and return how many bytes that took.

    Raises:
      TapeWriteError: If the form has no such dtype or name.
      OSError: If the file cannot be written; what was there before is still there.
    """
    put = FORMS[os.path.splitext(path)[1]]
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=".retrotape-", suffix=".tmp", dir=folder)
    try:
        with open(descriptor, "wb") as out:
            put(out, path, arrays)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # as any file that a user makes
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return os.path.getsize(path)


def _write_npz(out: IO[bytes], path: str, arrays: Arrays) -> None:
    import numpy as np

    with zipfile.ZipFile(out, "w") as archive:  # numpy's own writer takes names for arguments: none may be "file"
        for name, array in arrays.items():
            wide = array if array.dtype.name in _IN_NPZ else array.astype(np.float32)  # exact: all others are narrower
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(wide), allow_pickle=False)


def _write_safetensors(out: IO[bytes], path: str, arrays: Arrays) -> None:
    header: dict[str, object] = {}
    at = 0
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))  # so that each is aligned
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
