"""Tapes that were loaded from a file, or replayed."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakSet

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.errors import AmbiguousNameError, UnknownNameError
from retrotape.execute import Values
from retrotape.files.background import pending
from retrotape.files.saved import Path
from retrotape.ir import Program
from retrotape.query import Results, has_text, replace_names
from retrotape.record import EagerSession, LoadedSession, Trace
from retrotape.tape._base import AnyTape
from retrotape.tape._show import as_html
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.nests import TensorRef, is_variable

if TYPE_CHECKING:
    from retrotape.files import store
    from retrotape.tape.isolated import IsolatedTape

_VALUES = frozenset(("output_gradients", "cotangents", "tangents", "vectors"))  # options that need a value


class NamedTape(AnyTape):
    """A tape whose tensors and variables have names: `tape["name"]` is one, and queries accept the name too."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._results, self._lock = Results(), new_lock()
        self._by_name = dict(names)
        self._tensors: dict[int, Tensor] = {}  # by id of the object that a name refers to
        self._relatives: WeakSet[Trace] = WeakSet()  # the traces that share these names, such as those of replays

    @property
    @abstractmethod
    def _session(self) -> EagerSession:
        """The session that recorded."""

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
        """The program: everything that was recorded, in execution order."""
        with self._lock:
            return self._session.trace.snapshot()

    def __getitem__(self, name: str) -> Any:
        """Return the tensor or variable of that name, or the only one whose name ends with it."""
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
            self._tensors[identity] = tensor  # last, so that an interrupt leaves no half-registered tensor
        return self._tensors[identity]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and len(self._matches(name)) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._by_name)

    def _repr_html_(self) -> str:
        with self._lock:
            return as_html(repr(self), self._recorded().trace, self.names)

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
        def value_if_known(item: Any) -> Any:  # other strings may be options, such as "zero"
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
    """A tape from a file or from a replay; `rt.load` and `tape.replay` make it.

    It can be queried like any tape. `tape["name"]` is the tensor or variable of that name, and queries accept names in
    place of both.
    """

    def __init__(self, trace: Trace, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._held: EagerSession = LoadedSession(trace=trace)
        self._relatives.add(trace)

    @property
    def _session(self) -> EagerSession:
        return self._held

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
    """Return the tape in a file. It needs no model code and runs none: a file contains TensorFlow ops and nothing else.

    Values are read and verified on first use, and held from then on: if the file is truncated or changed later, you get
    an error or the original values, never other numbers. An op runs only if it is on a list of harmless ones, and if
    the size of its results is known in advance, matches the file, and fits into `limits`. That lowers the risk of an
    untrusted file; it does not make TensorFlow's kernels safe. For that, use `isolate`.

    Args:
      path: What `tape.save` wrote; also a URL that fsspec opens, such as "s3://bucket/step.tape". It is downloaded
        into a cache first.
      mmap: Map values instead of reading them, if you trust the disk: truncating a mapped file crashes the process,
        and changing it in place changes values after they were verified.
      allow_ops: Names of ops that may run although they are not on the list, or although the size of their results is
        not known in advance.
      limits: Upper bounds, as `retrotape.store.Limits`; `total_bytes` also bounds what is computed.
      isolate: Hold the tape in a separate process, confined as far as the system supports it: for untrusted files.
        The tape's `confinement` says how far; "strict" raises if it is not complete.
      memory: With `isolate`, how many bytes that process may use beyond TensorFlow's own; 2 GiB by default.
      timeout: With `isolate`, how many seconds loading, and then each query, may take; 60 by default.

    Raises:
      CorruptTapeError: If the file is damaged.
      UrlError: If a URL cannot be opened.
      UnsafeTapeError: If it contains something that a tape must not contain.
      TapeVersionError: If it needs a newer retrotape, or another TensorFlow.
      IsolationError: With `isolate`, if the process cannot be started or confined, or crashes on the file.

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
    from retrotape.files import store  # imported late, as most programs load nothing

    if isinstance(allow_ops, str):
        raise TypeError(f"allow_ops= takes a list of ops, got {allow_ops!r}: `allow_ops=[{allow_ops!r}]`.")
    if limits is not None and not isinstance(limits, store.Limits):
        raise TypeError(f"limits= takes `retrotape.store.Limits(total_bytes=...)`, got {type(limits).__name__}.")
    if isolate not in (False, True, "strict"):
        raise ValueError(f"isolate= must be False, True or 'strict', got {isolate!r}.")
    if pending or (isinstance(path, str) and "://" in path):  # else it is a local file, and complete
        from retrotape.files.places import local

        path = local(path, limits)
    if isolate:
        from retrotape.tape.isolated import isolate as load_isolated

        bounds = _number("memory", memory, 2**31), _number("timeout", timeout, 60)
        return load_isolated(path, *bounds, isolate == "strict", {"mmap": mmap}, allow_ops, limits)
    if memory is not None or timeout is not None:
        raise ValueError("memory= and timeout= apply to an isolated process: give isolate=True with them.")
    return load_here(path, mmap=mmap, allow_ops=allow_ops, limits=limits)


def load_here(path: Path, *, isolated: bool = False, **options: Any) -> LoadedTape:
    """Return the tape in a file, held by this process; `isolated` says that the process exists only for it."""
    from retrotape.files.load import read

    if os.path.isdir(path):
        from retrotape.files.shards import read_folder as read  # imported late: most tapes are a file

    opened = read(path, isolated=isolated, **options)
    return LoadedTape(opened.trace, opened.names)


def _number(option: str, given: float | None, default: int) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and isfinite(given)
    if given is not None and (not is_number or given <= 0):
        raise ValueError(f"{option}= takes a number above 0, got {given!r}.")
    if given is None:
        return default
    return int(given) if option == "memory" else given
