"""A tape that came from a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakSet

from retrotape.errors import ShapeMismatchError
from retrotape.execute import Request, Values
from retrotape.files.saved import Filed, Path
from retrotape.ir import Program
from retrotape.query import Answers, locked, replace_names
from retrotape.record import EagerLog, Log, Recording
from retrotape.tf.core import tf
from retrotape.tf.nests import describe, is_variable

if TYPE_CHECKING:
    from retrotape.files import store
    from retrotape.files.isolated import IsolatedTape

Tensor = Any
_GIVEN = frozenset(("output_gradients", "cotangents", "tangents", "vectors"))


class LoadedLog(EagerLog):
    """What was written down elsewhere."""

    def why_absent(self, tensor: Tensor) -> tuple[str, str] | None:
        """Say that a tensor cannot be on a tape that was not recorded here."""
        return "it was made in this process, and the tape was loaded", "Ask for what is on it: `tape['name']`."


class Replayable(Filed):
    """What a tape can do whose program can run again."""

    @locked
    def replay(
        self, inputs: Mapping[str, Any] | Iterable[tuple[Any, Any]], *, resample: bool = False, trust: bool = False
    ) -> LoadedTape:
        """Return a tape of the same program on other values.

        Random numbers are those that were recorded. Tensors and variables of this tape, and names, stand for their
        counterparts on the new one; `value` gives what they are there.

        Args:
          inputs: New values, by name on a tape that has names, or as pairs of a tensor (or variable) and its new value.
          resample: Draw random numbers anew; seeds that lie in variables, as those of Keras, get new values.
          trust: Go on where Python looked at a value that is another one now, though another branch might be due, and
            where a result has another size.

        Raises:
          ReplayError: If Python looked at a value that is another one now, or may have looked at a size that is.
          ShapeMismatchError: If a new value has another shape or dtype.

        >>> x = tf.constant(3.0)
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> again = tape.replay([(x, 5.0)])
        >>> float(again.value(y)), float(again.gradient(y, x))
        (25.0, 10.0)
        """
        log = self._eager("replay")
        found = []
        for key, value in _pairs(inputs):
            part = self._one(key)
            try:
                new = tf.convert_to_tensor(value, part.dtype)
            except (TypeError, ValueError) as error:
                raise ShapeMismatchError(
                    f"Got {type(value).__name__} as a new value for {describe(part)}: {error}. "
                    f"Convert it first: `tf.cast(value, tf.{part.dtype.name})`."
                ) from None
            if new.shape != part.shape:
                raise ShapeMismatchError(
                    f"Got a new value of shape {tuple(new.shape)} for {describe(part)}. "
                    "What was recorded holds for its shape; record again for another one."
                )
            found.append((part, tf.identity(new)))
        from retrotape.transform import replay

        again = LoadedTape(replay(log.recording, found, resample, trust), self._names())
        if isinstance(self, NamedTape):
            self._kin.add(again._log.recording)
            again._kin = self._kin
        return again


def _pairs(inputs: Any) -> list[Any]:
    given = list(inputs.items()) if isinstance(inputs, Mapping) else inputs
    pairs = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, tf.Tensor)) else [None]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            f"replay takes new values by name, `{{'x': new_x}}`, or pairs, `[(x, new_x)]`; got {type(inputs).__name__}."
        )
    return pairs


class NamedTape(Replayable):
    """A tape whose tensors and variables have names; `tape["name"]` is one of them, and its name can stand for it."""

    _log: EagerLog
    _named: dict[str, Any]
    _tensors: dict[int, Tensor]  # by identity of what a name stands for

    @cached_property
    def _kin(self) -> WeakSet[Recording]:
        """The recordings that know the same names: of this tape, and of replays."""
        return WeakSet([self._log.recording])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of tensors and variables on this tape."""
        return tuple(self._named)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables on this tape."""
        return tuple(self._log.recording.variables.values())

    @property
    def program(self) -> Program:
        """Everything that was recorded, in the order in which it ran, as data."""
        return self._log.recording.program()

    def __getitem__(self, name: str) -> Any:
        """Return the tensor or variable of that name, or the only one whose name ends so."""
        if not isinstance(name, str):
            raise TypeError(f"Tensors of this tape are known by name: `tape['name']`; got {name!r}.")
        found = self._meant_by(name)
        if is_variable(found):
            return found
        if found._id not in self._tensors:
            recording = self._log.recording
            with recording.explained():
                tensor = Values(recording)(_var(recording, found))
            for other in self._kin:
                other.alias(tensor._id, _var(other, found))
            self._tensors[found._id] = tensor  # last: an interrupt leaves no tensor that is known in part
        return self._tensors[found._id]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and len(self._named_so(name)) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._named)

    def _asked(self) -> EagerLog:
        self._log.refresh()
        return self._log

    def _names(self) -> Mapping[str, Any]:
        return self._named

    def _one(self, key: Any) -> Any:
        return self._meant_by(key) if isinstance(key, str) else super()._one(key)

    def stream(
        self, loss: Any, wrt: Any = None, *, through_updates: bool = False, since: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield gradients as soon as they are whole, as every tape does; names can be given too."""
        (loss, wrt), _ = self._without_names((loss, wrt), {})
        with self._log.recording.explained():
            yield from super().stream(loss, wrt, through_updates=through_updates, since=since)

    def _ask(self, log: Log, request: Request, compute: Callable[[], list[Any]]) -> list[Any]:
        recording = self._log.recording

        def answer() -> list[Any]:
            with recording.explained():
                return compute()

        return super()._ask(log, request, compute if recording.guard is None else answer)

    def _without_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        def put_if_known(item: Any) -> Any:  # beyond target and sources a word may be an option, such as "zero"
            return self[item] if isinstance(item, str) and item in self else item

        args, options = replace_names(args, options, self.__getitem__)
        named = {key: tf.nest.map_structure(put_if_known, options[key]) for key in _GIVEN & options.keys()}
        rest = [tf.nest.map_structure(put_if_known, arg) for arg in args[2:]]
        return (*args[:2], *rest), {**options, **named}


def _var(recording: Recording, named: Any) -> int:
    var = recording.known(named._id)
    assert var is not None
    return var


class LoadedTape(NamedTape):
    """What was recorded elsewhere, or on other values; `rt.load` and `tape.replay` make it.

    It answers every question that a tape answers. `tape["name"]` is the tensor or variable of that name, and names can
    be given in their place.
    """

    def __init__(self, recording: Recording, names: Mapping[str, Any]) -> None:
        self._log = LoadedLog("needed")
        self._log.recording = recording
        self._answers = Answers()
        self._lock = RLock()
        self._named, self._tensors = dict(names), {}

    def __repr__(self) -> str:
        return f"<loaded tape: {len(self._log.recording.builder.eqns)} equations, {len(self._named)} names>"


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
    return LoadedTape(opened.recording, opened.names)


def _number(option: str, given: float | None, default: int) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and isfinite(given)
    if given is not None and (not is_number or given <= 0):
        raise ValueError(f"{option}= takes a number above 0, got {given!r}.")
    if given is None:
        return default
    return int(given) if option == "memory" else given
