"""Check that what is in `dist` may be published under a tag: `python tools/check_release.py v0.1.0`.

The tag, the version of the package, `CITATION.cff` and the changelog have to name the same release, and `dist` has to
hold a wheel and a source distribution of it with metadata that PyPI takes. Whether they work, `make check-dist` tries.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

from retrotape import __version__

ROOT = Path(__file__).parents[1]


def naming_problems(tag: str, version: str, changelog: str, citation: str) -> list[str]:
    """Return where the release is named differently: what was got, what was expected, what to do."""
    found = []
    if tag != f"v{version}":
        found.append(f"got the tag {tag!r}; expected 'v{version}': set the version, commit, and tag that commit.")
    if "dev" in version:
        found.append(f"got the version {version}; expected one without 'dev': set it in the package, then tag.")
    if not re.search(rf"^## {re.escape(version)}(?= |$)", changelog, re.MULTILINE):
        found.append(f"got a changelog without `## {version}`; expected that title above what was 'Unreleased'.")
    if not re.search(rf'^version: "?{re.escape(version)}"?$', citation, re.MULTILINE):
        found.append(f"got another version in CITATION.cff; expected `version: {version}`, and `date-released`.")
    return found


def file_problems(folder: Path, version: str) -> list[str]:
    """Return what is wrong with the files of a folder."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    wheels = [path for path in files if path.name.endswith(".whl")]
    sources = [path for path in files if path.name.endswith(".tar.gz")]
    if (len(wheels), len(sources), len(files)) != (1, 1, 2):
        names = ", ".join(path.name for path in files) or "nothing"
        return [f"got {names} in {folder.name}; expected one wheel and one source distribution: `make wheel`."]
    return [
        f"{path.name}: {problem}"
        for path, text in ((wheels[0], wheel_metadata(wheels[0])), (sources[0], source_metadata(sources[0])))
        for problem in metadata_problems(text, version)
    ]


def wheel_metadata(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


def source_metadata(path: Path) -> bytes:
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return file.read()


def metadata_problems(text: bytes, version: str) -> list[str]:
    """Return what PyPI would not take, or would show badly."""
    try:
        metadata = Metadata.from_email(text, validate=True)
    except Exception as error:  # a group, with one error for each field
        return [f"{problem}" for problem in getattr(error, "exceptions", [error])]
    found = []
    if str(metadata.version) != version:
        found.append(f"got version {metadata.version}; expected {version}: `make wheel` builds it anew.")
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        found.append("got no description in Markdown; expected the README: `readme` in pyproject.toml.")
    return found


def main(tag: str) -> int:
    changelog, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    found = naming_problems(tag, __version__, changelog, citation) + file_problems(ROOT / "dist", __version__)
    for problem in found:
        print(f"check_release: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("check_release: expected one tag: `python tools/check_release.py v0.1.0`.")
    sys.exit(main(sys.argv[1]))
