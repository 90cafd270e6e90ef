"""A tape that came from a file, or that was replayed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakSet

from retrotape._types import Tensor
from retrotape.errors import AmbiguousNameError, UnknownNameError
from retrotape.execute import Values
from retrotape.files.saved import Path
from retrotape.ir import Program
from retrotape.query import Results, has_text, replace_names
from retrotape.record import EagerSession, LoadedSession, Trace
from retrotape.tape._base import AnyTape
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.nests import TensorRef, is_variable

if TYPE_CHECKING:
    from retrotape.files import store
    from retrotape.tape.isolated import IsolatedTape

_VALUES = frozenset(("output_gradients", "cotangents", "tangents", "vectors"))  # options of which a value is needed


class NamedTape(AnyTape):
    """A tape whose tensors and variables have names; `tape["name"]` is one of them, and its name can stand for it."""

    def __init__(self, session: EagerSession, names: Mapping[str, Any]) -> None:
        self._session = session
        self._results, self._lock = Results(), RLock()
        self._by_name = dict(names)
        self._tensors: dict[int, Tensor] = {}  # by identity of what a name stands for
        self._relatives: WeakSet[Trace] = WeakSet(
            [session.trace]
        )  # the traces that know the same names: of this tape, and of replays

    @property
    def names(self) -> tuple[str, ...]:
        """The names of tensors and variables on this tape."""
        return tuple(self._by_name)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables on this tape."""
        return tuple(self._session.trace.variables.values())

    @property
    def program(self) -> Program:
        """Everything that was recorded, in the order in which it ran, as data."""
        with self._lock:
            return self._session.trace.snapshot()

    def __getitem__(self, name: str) -> Any:
        """Return the tensor or variable of that name, or the only one whose name ends so."""
        if not isinstance(name, str):
            raise TypeError(f"Tensors of this tape are known by name: `tape['name']`; got {name!r}.")
        found = self._named(name)
        return found if is_variable(found) else self._tensor(found)

    def _tensor(self, reference: TensorRef) -> Tensor:
        identity = core.identity_of(reference)
        if identity not in self._tensors:
            trace = self._session.trace
            with trace.explained():
                tensor = Values(trace)(trace.tensors.by_identity[identity])
            for other in self._relatives:
                other.tensors.alias(core.identity_of(tensor), other.tensors.by_identity[identity])
            self._tensors[identity] = tensor  # last: an interrupt leaves no tensor that is known in part
        return self._tensors[identity]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and len(self._matches(name)) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._by_name)

    def _recorded(self) -> EagerSession:
        self._session.flush()
        return self._session

    def _names(self) -> Mapping[str, Any]:
        return self._by_name

    def _matches(self, name: str) -> list[str]:
        names = self._by_name
        return [name] if name in names else [known for known in names if known.endswith("/" + name)]

    def _named(self, name: str) -> Any:
        found = self._matches(name)
        if len(found) > 1:
            raise AmbiguousNameError(name, found)
        if not found:
            raise UnknownNameError(name, list(self._by_name))
        return self._by_name[found[0]]

    def _resolve_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        def value_if_known(item: Any) -> Any:  # beyond target and sources a word may be an option, such as "zero"
            return self[item] if isinstance(item, str) and item in self else item

        if not has_text(args) and not any(map(has_text, options.values())):
            return args, options
        args, options = replace_names(args, options, self._named)
        named = {key: tf.nest.map_structure(value_if_known, options[key]) for key in _VALUES & options.keys()}
        rest = [tf.nest.map_structure(value_if_known, arg) for arg in args[2:]]
        return (*args[:2], *rest), {**options, **named}

    def _replayed(self, trace: Trace) -> LoadedTape:
        again = LoadedTape(trace, self._by_name)
        self._relatives.add(trace)
        again._relatives = self._relatives
        return again


class LoadedTape(NamedTape):
    """What was recorded elsewhere, or on other values; `rt.load` and `tape.replay` make it.

    It can be queried as every tape can. `tape["name"]` is the tensor or variable of that name, and names can be given
    in their place.
    """

    def __init__(self, trace: Trace, names: Mapping[str, Any]) -> None:
        super().__init__(LoadedSession(trace=trace), names)

    def __repr__(self) -> str:
        return f"<loaded tape: {len(self._session.trace.program.eqns)} equations, {len(self._by_name)} names>"


@overload
def load(
    path: Path,
    *,
    mmap: bool = False,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolate: Literal[False] = False,
) -> LoadedTape: ...


@overload
def load(
    path: Path,
    *,
    mmap: bool = False,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolate: Literal[True, "strict"],
    memory: int | None = None,
    timeout: float | None = None,
) -> IsolatedTape: ...


@overload
def load(
    path: Path,
    *,
    mmap: bool = False,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolate: bool | Literal["strict"],
    memory: int | None = None,
    timeout: float | None = None,
) -> LoadedTape | IsolatedTape: ...


def load(
    path: Path,
    *,
    mmap: bool = False,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolate: bool | Literal["strict"] = False,
    memory: int | None = None,
    timeout: float | None = None,
) -> LoadedTape | IsolatedTape:
    """Return the tape in a file. It needs no model code and runs none: a file names ops of TensorFlow, nothing else.

    Values are read and verified when they are first used, and held from then on: a file that is cut or changed later
    gives an error or what it was, never other numbers. An op runs only if it is on a list of harmless ones, and if what
    it will make is known before, is what the file says, and fits into `limits`. That lowers the risk of a stranger's
    file; it does not make TensorFlow's kernels safe. `isolate` is for that.

    Args:
      path: What `tape.save` wrote.
      mmap: Map values instead of reading them, where you trust the disk: a file that is cut short while it is mapped
        ends the process, and one that is changed in place changes what was verified.
      allow_ops: Names of ops that may run although they are not on the list, or nobody can tell what they will make.
      limits: What to put up with, as `retrotape.store.Limits`; `total_bytes` bounds what is computed, too.
      isolate: Hold the tape in a process of its own, confined as far as the system can: for files of strangers. The
        `confinement` of the tape says how far; "strict" raises where it is not complete.
      memory: With `isolate`, how many bytes that process may take beyond TensorFlow's own; 2 GiB by default.
      timeout: With `isolate`, how many seconds loading, and then each query, may take; 60 by default.

    Raises:
      CorruptTapeError: If the file is damaged.
      UnsafeTapeError: If it has what no tape should have.
      TapeVersionError: If it needs a newer retrotape, or another TensorFlow.
      IsolationError: With `isolate`, if the process cannot be started or confined, or dies of the file.

    >>> import os, tempfile
    >>> w = tf.Variable(2.0, name="w")
    >>> with rt.Tape() as tape:
    ...     loss = w ** 3
    >>> path = os.path.join(tempfile.mkdtemp(), "cube.tape")
    >>> _ = tape.save(path, {"loss": loss})
    >>> loaded = rt.load(path)
    >>> float(loaded.gradient(loaded["loss"], loaded["w"]))
    12.0
    """
    from retrotape.files import store  # late, as all that reads files: most programs load nothing

    if isinstance(allow_ops, str):
        raise TypeError(f"allow_ops= takes a list of ops, got {allow_ops!r}: `allow_ops=[{allow_ops!r}]`.")
    if limits is not None and not isinstance(limits, store.Limits):
        raise TypeError(f"limits= takes `retrotape.store.Limits(total_bytes=...)`, got {type(limits).__name__}.")
    if isolate not in (False, True, "strict"):
        raise ValueError(f"isolate= must be False, True or 'strict', got {isolate!r}.")
    if isolate:
        from retrotape.tape.isolated import isolate as load_isolated

        bounds = _number("memory", memory, 2**31), _number("timeout", timeout, 60)
        return load_isolated(path, *bounds, isolate == "strict", {"mmap": mmap}, allow_ops, limits)
    if memory is not None or timeout is not None:
        raise ValueError("memory= and timeout= bound a process of its own: give isolate=True with them.")
    return load_here(path, mmap=mmap, allow_ops=allow_ops, limits=limits)


def load_here(path: Path, *, isolated: bool = False, **options: Any) -> LoadedTape:
    """Return the tape in a file, held by this process; `isolated` says that it holds nothing else."""
    from retrotape.files.load import read

    opened = read(path, isolated=isolated, **options)
    return LoadedTape(opened.trace, opened.names)


def _number(option: str, given: float | None, default: int) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and isfinite(given)
    if given is not None and (not is_number or given <= 0):
        raise ValueError(f"{option}= takes a number above 0, got {given!r}.")
    if given is None:
        return default
    return int(given) if option == "memory" else given
