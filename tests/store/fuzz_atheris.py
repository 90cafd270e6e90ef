"""Feed the reader with what a coverage-guided fuzzer makes up. Run by hand: `python tests/store/fuzz_atheris.py`.

Needs `atheris`, which is not among the locked requirements. Arguments are those of libFuzzer, such as
`-max_total_time=120`, and a folder where it keeps what it found.

The first byte says what the rest is: a whole file, `tape.json` after its check sum, the tensors, or `tape.json` of a
folder. The last three get right check sums, or nothing would come past them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Fuzz until libFuzzer has had enough."""
    import atheris

    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
    with atheris.instrument_imports(include=["retrotape.store", "retrotape.ir", "json"]):
        from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
        from retrotape.store import Limits
    from store import forge
    from store.reading import read_all

    memory = Path("/dev/shm")
    folder = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / "fuzz-retrotape"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "seeds").mkdir(parents=True)
    limits = Limits(json_memory=1 << 20)
    tape = forge.folder(folder / "folder.tape")

    def build(kind: int, data: bytes) -> Path:
        if kind == 3:
            (tape / "tape.json").write_bytes(forge.seal(data))
            return tape
        path = folder / "a.tape"
        path.write_bytes([data, forge.file(forge.seal(data)), forge.file(tensors=data)][kind])
        return path

    def one_input(data: bytes) -> None:
        """Anything but a refusal or consistent content is a finding."""
        if not data:
            return
        try:
            found = read_all(build(data[0] % 4, data[1:]), mmap=bool(data[0] & 4), limits=limits)
        except (CorruptTapeError, TapeVersionError, UnsafeTapeError) as error:
            if str(error).isprintable():
                return
            raise
        for name, info in found["tensors"].items():
            if info.dtype != "string":
                assert forge.sha256(found["values"][name]) == info.sha256

    in_folder = forge.as_rest(forge.fields(features=["blobs"], store="blobs"))
    for number, seed in enumerate([forge.file(), forge.as_rest(forge.fields()), forge.safetensors(), in_folder]):
        (folder / "seeds" / str(number)).write_bytes(bytes([number]) + seed)
    atheris.Setup([*sys.argv, str(folder / "seeds")], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
