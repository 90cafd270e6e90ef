"""`tape.json` as bytes and back, with its own check sum, and nothing that JSON readers disagree about.

The text begins with its format and the sha256 of itself, taken with 64 zeros in the place of the digits:

    {"format":"tape/1","check":"9f86d0...",
    "features":[],
    ...
    }
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from retrotape.store._format import FORMAT, TAPE, Limits, shown
from retrotape.store._where import Where

_BEGIN = re.compile(rb'\{"format":"([a-z0-9/._-]{1,40})","check":"([0-9a-f]{64})"')
_STRING = re.compile(rb'"[^"]*"')
_TO_NINES = bytes.maketrans(b"012345678", b"999999999")
_LONG_NUMBER = b"9" * 400  # Python takes long over such an int, or refuses it
_STEP = {ord(sign): step for sign, step in zip("[{]}", (1, 1, -1, -1), strict=True)}
_NOT_BRACKETS = bytes(set(range(256)) - set(_STEP))


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return `tape.json`: the same fields, the same bytes.

    Raises:
      ValueError: If a value is none of JSON's: NaN, an infinity, half of a surrogate pair.
      TypeError: If it is no value of JSON at all.
    """
    begin = f'{{"format":"{FORMAT}","check":"'
    lines = [f",\n{_dump(key)}:{_dump(fields[key])}" for key in sorted(fields)]
    rest = "".join(['"', *lines, "\n}\n"]).encode()
    head = begin.encode()
    check = hashlib.sha256(head + b"0" * 64 + rest).hexdigest().encode()
    return head + check + rest


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def unseal(where: Where, data: bytes, limits: Limits) -> dict[str, Any]:
    """Return the fields of `tape.json` but format and check, which have been looked at.

    Raises:
      TapeVersionError: If it is of another format.
      CorruptTapeError: If it is not what was written.
      UnsafeTapeError: If it exceeds a limit or is ambiguous.
    """
    begin = _BEGIN.match(data)
    if begin is None:
        raise where.corrupt(f"{TAPE} begins with {shown(data[:24])}, not with its format and check sum")
    if begin[1] != FORMAT.encode():
        raise where.version(f"the format {begin[1].decode()}")
    whole = hashlib.sha256(data[: begin.start(2)])
    whole.update(b"0" * 64)
    whole.update(memoryview(data)[begin.end(2) :])
    if whole.hexdigest().encode() != begin[2]:
        raise where.corrupt(f"the check sum of {TAPE} is wrong, so it was changed after it was written")
    fields = parse(where, TAPE, data, limits)
    del fields["format"], fields["check"]
    return fields


def parse(where: Where, entry: str, data: bytes, limits: Limits) -> Any:
    """Return what an entry says, as JSON that every reader reads alike.

    Raises:
      CorruptTapeError: If it is not JSON.
      UnsafeTapeError: If it exceeds a limit or is ambiguous.
    """
    _measure(where, entry, data, limits)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise where.unsafe(f"{entry} gives {shown(twice)} twice")
        return found

    def constant(text: str) -> float:
        raise where.unsafe(f"{entry} holds {text}, which is not JSON")

    def real(text: str) -> float:
        value = float(text)
        return constant(shown(text)) if value in (float("inf"), float("-inf")) else value

    try:
        fields = json.loads(
            data.decode("utf-8"), object_pairs_hook=once, parse_constant=constant, parse_float=real
        )  # the depth was measured, so this cannot overflow the stack
        if b"\\u" in data:
            _dump(fields).encode()  # half of a surrogate pair would fail later, where somebody prints it
    except UnicodeError:
        raise where.corrupt(f"{entry} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise where.corrupt(f"{entry} is not JSON: {error.msg} at character {error.pos}") from None
    return fields


def _measure(where: Where, entry: str, data: bytes, limits: Limits) -> None:
    """Refuse what would become too large or too deep, before it is an object."""
    marks = data.count(b'"')
    if marks > 4 * limits.json_values:  # a value has a name and is a string: no more than four marks
        raise where.over(
            f"the number of strings in {entry} is too high", marks // 2, 2 * limits.json_values, "json_values"
        )
    # Backslashes are allowed in strings only. Without the escaped ones, a string ends at the next quotation mark.
    bare = _STRING.sub(b"", data.replace(b"\\\\", b"").replace(b'\\"', b""))
    brackets = bare.translate(None, _NOT_BRACKETS)
    values = bare.count(b",") + len(brackets)
    if values > limits.json_values:
        raise where.over(f"the number of values in {entry} is too high", values, limits.json_values, "json_values")
    depth = max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
    if depth > limits.json_depth:
        raise where.over(f"lists and objects in {entry} are too deep", depth, limits.json_depth, "json_depth")
    if _LONG_NUMBER in bare.translate(_TO_NINES):
        raise where.unsafe(f"{entry} holds a number of 400 digits or more")
