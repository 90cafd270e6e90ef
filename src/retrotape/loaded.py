"""A tape that came from a file."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from threading import RLock
from typing import Any

from retrotape import store
from retrotape._asking import Answers
from retrotape._nests import is_variable
from retrotape._tf import tf
from retrotape.errors import UnknownNameError
from retrotape.execute import Values
from retrotape.files import Filed
from retrotape.ir import Program
from retrotape.record import EagerLog, Recording
from retrotape.saving import read

Tensor = Any
_NAMED = frozenset(("target", "sources", "source", "loss", "losses", "wrt", "variable"))


class _LoadedLog(EagerLog):
    def why_absent(self, tensor: Tensor) -> tuple[str, str] | None:
        """Say that a tensor cannot be on a tape that was not recorded here."""
        return "it was made in this process, and the tape was loaded", "Ask for what is on it: `tape['name']`."


class LoadedTape(Filed):
    """What was recorded elsewhere, or on other values; `rt.load` and `tape.replay` make it.

    It answers every question that a tape answers. `tape["name"]` is the tensor or variable of that name, and names can
    be given in their place.
    """

    def __init__(self, recording: Recording, names: Mapping[str, Any]) -> None:
        self._log = _LoadedLog("needed")
        self._log.recording = recording
        self._answers = Answers()
        self._lock = RLock()
        self._named = dict(names)
        self._tensors: dict[str, Tensor] = {}

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
        """Everything that was recorded, as data."""
        return self._log.recording.program()

    def __getitem__(self, name: str) -> Any:
        """Return the tensor or variable of that name, or the only one whose name ends so."""
        if name not in self._named:
            ending = [known for known in self._named if known.endswith("/" + name)]
            if len(ending) != 1:
                raise UnknownNameError(name, list(self._named))
            (name,) = ending
        found = self._named[name]
        if is_variable(found):
            return found
        if name not in self._tensors:
            recording = self._log.recording
            var = recording.known(found._id)
            assert var is not None
            self._tensors[name] = Values(recording)(var)
            recording.alias(self._tensors[name]._id, var)
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def _asked(self) -> EagerLog:
        self._log.refresh()
        return self._log

    def _names(self) -> Mapping[str, Any]:
        return self._named

    def _one(self, key: Any) -> Any:
        return self[key] if isinstance(key, str) else super()._one(key)

    def _without_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        def put(item: Any) -> Any:
            return self[item] if isinstance(item, str) else item

        named = {key: tf.nest.map_structure(put, value) for key, value in options.items() if key in _NAMED}
        return tuple(tf.nest.map_structure(put, arg) for arg in args), {**options, **named}

    def __repr__(self) -> str:
        program = self.program
        return f"<loaded tape: {len(program.eqns)} equations, {len(self._named)} names>"


def load(
    path: str | os.PathLike[str],
    *,
    mmap: bool = True,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
) -> LoadedTape:
    """Return the tape in a file. It needs no model code and runs none: a file names ops of TensorFlow, nothing else.

    Values are mapped, not read, and verified when they are first looked at. That, and a list of harmless ops, lowers
    the risk of a stranger's file; it does not make TensorFlow's kernels safe.

    Args:
      path: What `tape.save` wrote.
      mmap: Map values; else read them when they are needed.
      allow_ops: Names of ops that may run although they are not on the list.
      limits: What to put up with, as `retrotape.store.Limits`.

    Raises:
      CorruptTapeError: If the file is damaged.
      UnsafeTapeError: If it has what no tape should have.
      TapeVersionError: If it needs a newer retrotape, or another TensorFlow.

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
    opened = read(path, mmap=mmap, allow_ops=allow_ops, limits=limits)
    return LoadedTape(opened.recording, opened.names)
