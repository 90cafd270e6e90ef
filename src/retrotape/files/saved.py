"""A tape as a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from retrotape.diagnose.inspection import IN_EAGER_CODE, Inspected
from retrotape.diagnose.why import Explanation, Verdict, explain
from retrotape.errors import AmbiguousNameError, NotRecordedError, TapeUseError, UnknownNameError, did_you_mean
from retrotape.execute import Values
from retrotape.query import locked, question
from retrotape.record import EagerLog
from retrotape.tf.core import tf
from retrotape.tf.nests import describe, has_derivative, is_variable, single, take_apart, unwrap

if TYPE_CHECKING:
    from retrotape.files.save import Prepared

Path = str | os.PathLike[str]


class Filed(Inspected, ABC):
    """What can be done with a whole recording: save it, and export it."""

    @locked
    def save(
        self,
        path: Path,
        names: Mapping[str, Any] | None = None,
        *,
        values: str = "leaves",
        redact: Collection[str] = (),
        freeze: Collection[str] = (),
        store: Path | None = None,
        overwrite: bool = True,
        **named: Any,
    ) -> int:
        """Write the tape to a file that `rt.load` reads without the model's code, and return its size in bytes.

        The file holds the program, and the values that it started from: weights, and the data that were used. Whoever
        gets it gets them; `redact` leaves out what nobody else should see.

        Args:
          path: The file; with `store`, a folder.
          names: What to call tensors and variables, also nested. Variables that are not listed keep their own names.
          values: "leaves" writes what cannot be computed again; "needed" also what gradients look at; "all"
            everything.
          redact: Names whose values are left out. Questions that need one raise, until `replay` gives another.
          freeze: Ops whose results are kept as constants because the ops cannot be saved.
          store: A folder for the tensors of many tapes, each of them once.
          overwrite: Whether a file that is there may be replaced.
          **named: Names as keywords: `tape.save(path, x=x, loss=loss)`. One that is also an option goes into `names`.

        Raises:
          NotPersistableError: If something that was recorded cannot be saved.
          TapeWriteError: If the file cannot be written; what was there before is still there.

        >>> import os, tempfile
        >>> x = tf.constant(3.0)
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> path = os.path.join(tempfile.mkdtemp(), "square.tape")
        >>> _ = tape.save(path, x=x, y=y)
        >>> float(rt.load(path).gradient("y", "x"))
        6.0
        """
        prepared = self._prepared(with_keywords(names, named), values=values, redact=redact, freeze=freeze)
        return prepared.write(path, overwrite=overwrite, store_in=store)

    @locked
    def size(self, values: str = "leaves") -> int:
        """Return about how many bytes `save` would write.

        Args:
          values: As for `save`.

        >>> x = tf.range(1000.0)
        >>> with rt.Tape() as tape:
        ...     y = x * 2.0
        >>> 4_000 < tape.size() < tape.size("all") < 16_000
        True
        """
        return self._prepared(None, values=values).size()

    @locked
    def export_saved_model(self, path: Path, names: Mapping[str, Any] | None = None) -> None:
        """Write a SavedModel for those who have TensorFlow but not this library.

        `tf.saved_model.load(path)` gives an object with `replay`, from named inputs to named results, its variables,
        and a signature `gradient_of_<name>` for each result that is a scalar.

        Args:
          path: The folder.
          names: As for `save`. At least one result needs a name.
        """
        from retrotape.files.export import export_saved_model

        export_saved_model(self._eager("export_saved_model").recording, self._all_names(names), path)

    @locked
    def export_graph(self, directory: Path, names: Mapping[str, Any] | None = None) -> None:
        """Write the program as a graph for TensorBoard: `tensorboard --logdir directory`.

        Args:
          directory: Where TensorBoard looks.
          names: As for `save`. At least one result needs a name.
        """
        from retrotape.files.export import export_graph

        export_graph(self._eager("export_graph").recording, self._all_names(names), directory)

    @question
    def value(self, tensor: Any) -> Any:
        """Return what a tensor or variable of this tape, or a name, is here: recorded, or computed again.

        >>> x = tf.constant(3.0)
        >>> with rt.Tape(keep="leaves") as tape:
        ...     y = x * x
        >>> float(tape.replay([(x, 2.0)]).value(y))
        4.0
        """
        log = self._eager("value")
        part = self._one(tensor)
        cell = log.cell(part) if is_variable(part) else None
        var = log.find(part) if cell is None and not is_variable(part) else (cell.current if cell else None)
        if var is None:
            raise NotRecordedError(describe(part), "it took no part in what was recorded", "Use it inside the block.")
        with log.recording.explained():
            return Values(log.recording)(var)

    @question
    def why(self, target: Any, source: Any, *, through_updates: bool = False, since: int | None = None) -> Explanation:
        """Return why a target has a gradient by a source, or none; printing it gives a few lines.

        Args:
          target: A tensor or a variable, or a nest of them, which are summed.
          source: A tensor, a variable, or a value from `at`, or a nest of them.
          through_updates: As for `gradient`.
          since: As for `gradient`.

        Returns:
          An `Explanation`: a verdict with the op that cuts the path, the line that ran it, and what to do; for a nest
          of sources, a nest of them.

        >>> w = tf.Variable(2.0)
        >>> with rt.Tape() as tape:
        ...     loss = tf.stop_gradient(w) * 3.0
        >>> print(tape.why(loss, w).verdict.name, "at", tape.why(loss, w).cut.op)
        STOP_GRADIENT at StopGradient
        """
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        if isinstance(source, (list, tuple, dict)):
            return tf.nest.map_structure(lambda one: self.why(target, one, **options), source)
        log, by = self._eager("why"), single(source, "why", "source")
        given = take_apart(target, "target").flat()
        parts = [part for part in given if has_derivative(part)] or given  # others are left out of the sum
        if len(parts) == 1 and parts[0] is by and is_variable(by) and log.cell(by) is None:
            said = describe(by)
            return Explanation(Verdict.CONNECTED, said, said, detail="The target is the source itself.")
        asked = [part for part in parts if not is_variable(part) and self._answers.request_of(part) is not None]
        for part in parts:
            self._write_down(part, log)
        found = explain(log, parts, by, **options)
        there = found.verdict in (Verdict.CONNECTED, Verdict.ZERO)
        if asked and not there and self.gradient(asked, by, **options) is not None:
            detail = "The target is a gradient, and does not depend on the source: it is constant."
            return Explanation(Verdict.ZERO, found.target, found.source, detail=detail)
        return found

    # ------------------------------------------------------------------ what tapes differ in

    def _names(self) -> Mapping[str, Any]:
        """Return what names stand for: vars and variables."""
        return {}

    def _has_name(self, name: str) -> bool:
        """Say whether there is a tensor or variable of that name, or one whose name ends so."""
        return bool(self._named_so(name))

    def _meant_by(self, name: str) -> Any:
        """Return what a name stands for, though it may not have been computed."""
        found = self._named_so(name)
        if len(found) > 1:
            raise AmbiguousNameError(name, found)
        if not found:
            raise UnknownNameError(name, list(self._names()))
        return self._names()[found[0]]

    def _named_so(self, name: str) -> list[str]:
        names = self._names()
        return [name] if name in names else [known for known in names if known.endswith("/" + name)]

    def _one(self, key: Any) -> Any:
        """Return the tensor or variable that the user means."""
        part = unwrap(key)
        if isinstance(part, str) or not (is_variable(part) or isinstance(part, tf.Tensor)):
            raise TypeError(
                f"Got {key!r}; this tape has no names, so give a tensor or a variable: `tape.replay([(x, new_x)])`."
            )
        return part

    def _eager(self, method: str) -> EagerLog:
        log = self._asked()
        if not isinstance(log, EagerLog):
            raise TapeUseError(
                f"{method} works on tapes recorded in eager code; this one is in a tf.function. {IN_EAGER_CODE}"
            )
        return log

    def _prepared(self, names: Mapping[str, Any] | None, **options: Any) -> Prepared:
        log = self._eager("save")
        given = self._all_names(names)
        for part in _tensors_in(names):
            var = self._answers.var(part, log)
            if var is not None:  # an answer of this tape, which is written down when somebody asks about it
                log.recording.alias(part._id, var)
            elif log.find(part) is None and log.why_absent(part) is None:
                log.take_part(part)  # made in the block, but by no op: what is a target can be named
        from retrotape.files.save import prepare  # late: most programs save nothing

        return prepare(log.recording, given, **options)

    def _all_names(self, names: Mapping[str, Any] | None) -> dict[str, Any]:
        if names is not None and not isinstance(names, Mapping):
            raise TypeError(f"names= takes a mapping, `{{'x': x, 'loss': loss}}`; got {type(names).__name__}.")
        return {**self._names(), **(names or {})}

    @abstractmethod
    def _asked(self) -> Any:
        """Return what was recorded, up to date."""


def with_keywords(names: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the names that were given, those as keywords too."""
    if not named:
        return names
    for name, value in named.items():
        if not any(isinstance(unwrap(part), (tf.Tensor, tf.Variable)) for part in tf.nest.flatten(value)):
            meant = did_you_mean(name, ["names", "values", "redact", "freeze", "store", "overwrite"])
            raise TypeError(
                f"save got {name}={value!r}, which is neither an option nor a tensor to be called {name!r}.{meant}"
            )
    if names is not None and not isinstance(names, Mapping):
        return names  # which is refused
    twice = sorted(named.keys() & (names or {}).keys())
    if twice:
        raise TypeError(f"save got the name {twice[0]!r} twice, in names= and as a keyword; give it once.")
    return {**(names or {}), **named}


def _tensors_in(names: Any) -> Iterator[Any]:
    if isinstance(names, (Mapping, list, tuple)):
        for item in names.values() if isinstance(names, Mapping) else names:
            yield from _tensors_in(item)
    elif isinstance(names, tf.Tensor):
        yield names
