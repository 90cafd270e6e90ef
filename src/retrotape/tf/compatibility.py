"""Check that the installed TensorFlow and Keras have the private names that retrotape uses, and their versions.

A name that is missing, or takes other parameters, is reported before anything records. Otherwise it would cause an
AttributeError in the middle of a program, or an op that is not recorded.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterable
from functools import reduce
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple

from retrotape import _version
from retrotape.errors import IncompatibleTensorFlowError
from retrotape.tf import private_names

_LINE = re.compile(r"(?P<module>[\w.]+):(?:(?P<owner>[\w.]+)\.)?(?P<name>\w+)(?:\((?P<parameters>.*)\))?")


class PrivateName(NamedTuple):
    """One line of the table.

    Attributes:
      module: The full name of its module.
      owner: The class or submodule in it that has the name; "" for the module itself.
      name: The name.
      parameters: What it takes; None if not checked. The last may be "...", for any others.
    """

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...] | None

    @classmethod
    def parse(cls, line: str) -> PrivateName:
        """Parse a line of `private_names`.

        >>> PrivateName.parse("eager.execute:record_gradient(op_name, ...)").parameters
        ('op_name', '...')
        >>> str(PrivateName.parse("framework.ops:EagerTensor._id"))
        'tensorflow.python.framework.ops.EagerTensor._id'
        """
        found = _LINE.fullmatch(line)
        assert found is not None, line
        module, parameters = found["module"], found["parameters"]
        if module.partition(".")[0] not in ("tensorflow", "keras"):
            module = f"tensorflow.python.{module}"
        split = None if parameters is None else tuple(part.strip() for part in parameters.split(",") if part)
        return cls(module, found["owner"] or "", found["name"], split)

    def __str__(self) -> str:
        return ".".join(part for part in (self.module, self.owner, self.name) if part)

    def problem(self, hooked: bool) -> str | None:
        """Return how the installed name differs from what is expected; None if it does not.

        Args:
          hooked: Whether it is replaced by a hook, and so must take exactly these parameters.
        """
        try:
            owner = owner_of(self)
        except (ImportError, AttributeError):
            return f"there is no {self}"
        if not _has(owner, self.name):
            return None if _is_set_by_methods(owner, self.name) else f"there is no {self}"
        found = getattr(owner, self.name)
        if self.parameters is None or _fits(found, self.parameters, hooked):
            return None
        return f"{self} takes {inspect.signature(found)}, not ({', '.join(self.parameters)})"


def owner_of(private: PrivateName) -> Any:
    """Return the module or class that should have a name."""
    return reduce(getattr, private.owner.split(".") if private.owner else (), import_module(private.module))


def _has(owner: Any, name: str) -> bool:
    if inspect.isclass(owner):  # without attributes of its metaclass, such as `__call__`
        return any(name in vars(cls) for cls in owner.__mro__)
    return hasattr(owner, name)


def _is_set_by_methods(owner: Any, name: str) -> bool:
    """Return whether methods of a class set an attribute that the class itself does not have."""
    members = (member for cls in getattr(owner, "__mro__", ()) for member in vars(cls).values())
    codes = (getattr(inspect.unwrap(member), "__code__", None) for member in members if callable(member))
    return any(code is not None and name in code.co_names and _stores(code, name) for code in codes)


def _stores(code: CodeType, name: str) -> bool:
    """Return whether code sets an attribute of that name; faster than to disassemble it."""
    wanted = dis.opmap["STORE_ATTR"], code.co_names.index(name) & 0xFF  # higher bits are in an instruction before it
    return wanted in zip(code.co_code[::2], code.co_code[1::2], strict=True)


def _fits(function: Any, expected: tuple[str, ...], hooked: bool) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # not written in Python
        return callable(function)
    is_open = expected[-1:] == ("...",)
    leading = expected[:-1] if is_open else expected
    variadic = [one for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    names = tuple(one.name for one in parameters if one not in variadic)
    if len(variadic) == 2 and names == leading[: len(names)]:  # a third-party wrapper that takes anything
        return True
    optional = all(one.default is not one.empty for one in parameters[len(leading) :] if one not in variadic)
    return names[: len(leading)] == leading and (is_open or names == leading or (optional and not hooked))


def problems(lines: Iterable[str], hooked: bool = False) -> list[str]:
    """Return the problems with the names in some lines of the table."""
    found = (PrivateName.parse(line).problem(hooked) for line in lines)
    return [problem for problem in found if problem is not None]


def _summary(found: list[str]) -> str:
    more = f"; and {len(found) - 8} more" if len(found) > 8 else ""
    return "; ".join(found[:8]) + more


def check_tensorflow(version: object) -> None:
    """Raise if TensorFlow's private names are not as expected.

    Args:
      version: The version that TensorFlow reports.
    """
    found = problems(private_names.HOOKED, hooked=True) + problems(private_names.CALLED)
    if found:
        raise IncompatibleTensorFlowError(shown(version), _summary(found))


_checked_keras: Any = None


def check_keras(keras: Any, version: object) -> None:
    """Raise if Keras, if imported, is not as expected; check once.

    Args:
      keras: The module, None if not imported.
      version: The version that TensorFlow reports.
    """
    global _checked_keras
    if keras is None or keras is _checked_keras:
        return
    found = problems([private_names.BACKEND])
    if not found and keras.backend.backend() != "tensorflow":
        return  # values of other backends are rejected when passed to a query
    found = found or problems(private_names.KERAS)
    if not found and not isinstance(inspect.getattr_static(keras.Variable, "value"), property):
        found = ["keras.Variable.value is not a property"]
    if not found and "__call__" not in vars(keras.Layer):
        found = ["keras.Layer.__call__ is not defined in that class"]
    if found:
        raise IncompatibleTensorFlowError(shown(version), _summary(found), shown(getattr(keras, "__version__", None)))
    _checked_keras = keras


# ---------------------------------------------------------------------- versions


def shown(version: object) -> str:
    """Return a version as shown in messages.

    >>> shown("2.21.0"), shown(None), shown("")
    ('2.21.0', '(unknown version)', '(unknown version)')
    """
    return str(version or "").strip() or "(unknown version)"


def minor_of(version: object) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None if it has none.

    >>> minor_of("2.22.0-dev20261101"), minor_of("3.0"), minor_of("unknown"), minor_of(None)
    ((2, 22), (3, 0), None, None)
    """
    found = re.match(r"\s*v?([0-9]{1,9})\.([0-9]{1,9})", str(version))
    return None if found is None else (int(found[1]), int(found[2]))


def is_tested(version: object) -> bool:
    """Return whether retrotape is tested with this minor version of TensorFlow.

    >>> is_tested("2.21.0"), is_tested("2.15.1"), is_tested("3.0.0-rc1"), is_tested("unknown")
    (True, False, False, False)
    """
    minor = minor_of(version)
    return minor is not None and _version.TENSORFLOW[0] <= minor <= _version.TENSORFLOW[1]


def is_release(version: object) -> bool:
    """Return whether a version is a final TensorFlow release: no nightly, release candidate or vendor build.

    >>> is_release("2.21.0"), is_release("2.20.0rc1"), is_release("2.19.0+nv24.5")
    (True, False, False)
    """
    return re.fullmatch(r"\s*[0-9]+\.[0-9]+(\.[0-9]+)*\s*", str(version)) is not None
