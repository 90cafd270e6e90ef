"""A tape as a file: the methods of a tape that write one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, overload

from retrotape.errors import TapeUseError, did_you_mean
from retrotape.files.background import pending
from retrotape.ir import COLLECTIVES
from retrotape.record import EagerSession, current_stack
from retrotape.tf.core import DistributedValues, tf
from retrotape.tf.methods import locked
from retrotape.tf.nests import unwrap
from retrotape.tf.replicas import values_of
from retrotape.tf.workers import job_of

if TYPE_CHECKING:
    from retrotape.files.save import Snapshot

Path = str | os.PathLike[str]
_OPTIONS = ["names", "values", "redact", "freeze", "store", "overwrite", "wait", "timeout", "code"]


class Saved(ABC):
    """A trace that can be saved and exported."""

    _lock: RLock

    @abstractmethod
    def _eager(self, method: str) -> EagerSession:
        """Return the session that recorded eager code, or raise."""

    @abstractmethod
    def _names(self) -> Mapping[str, Any]:
        """Return the tensors and variables that names refer to."""

    @abstractmethod
    def _record_result(self, part: Any, session: EagerSession) -> bool:
        """Register a result of this tape under the var that it was computed from; return whether it is one."""

    @overload
    def save(
        self,
        path: Path,
        names: Mapping[str, Any] | None = ...,
        *,
        values: str = ...,
        redact: Collection[str] = ...,
        freeze: Collection[str] = ...,
        store: Path | None = ...,
        overwrite: bool = ...,
        code: bool = ...,
        wait: Literal[True] = ...,
        **named: Any,
    ) -> int: ...

    @overload
    def save(
        self,
        path: Path,
        names: Mapping[str, Any] | None = ...,
        *,
        values: str = ...,
        redact: Collection[str] = ...,
        freeze: Collection[str] = ...,
        store: Path | None = ...,
        overwrite: bool = ...,
        code: bool = ...,
        wait: Literal[False],
        **named: Any,
    ) -> Future[int]: ...

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
        wait: bool = True,
        timeout: float = 20.0,
        code: bool = True,
        **named: Any,
    ) -> int | Future[int]:
        """Write the tape to a file that `rt.load` reads without the model's code, and return its size in bytes.

        The file holds the program and the values that it started from: weights, and the data that were used. Anyone
        who has the file has these values; `redact` leaves out those that others should not see.

        Under a multi-worker strategy, call it on every worker: each writes a shard into the folder `path`, and the tape
        is there when all have. `rt.load` opens the folder as one tape of the whole job.

        Args:
          path: The file; with `store`, a folder. Also a URL that fsspec opens, such as "s3://bucket/step.tape".
          names: What to call tensors and variables, also nested. Variables that are not listed keep their own names.
          values: "leaves" writes what cannot be recomputed; "needed" also what gradients need; "all" everything.
          redact: Names whose values are left out. Queries that need one raise, until `replay` provides a value.
          freeze: Ops whose results are kept as constants because the ops cannot be saved.
          store: A folder for the tensors of many tapes, each of them once.
          overwrite: Whether an existing file may be replaced.
          wait: False saves in the background and returns a `concurrent.futures.Future` at once; its `result()` is the
            size, or raises. The file is that of this moment, whatever happens to the tape and its variables afterwards.
            Several are written one after the other, and Python does not exit before they are.
          timeout: Under a multi-worker strategy, how many seconds to wait for a worker that does not respond.
          code: Whether to store the text of the lines of code that ran the ops, for explanations and reports elsewhere.
          **named: Names as keywords: `tape.save(path, x=x, loss=loss)`. One that is also an option goes into `names`.

        Raises:
          NotPersistableError: If a recorded op cannot be saved.
          TapeWriteError: If the file cannot be written; what was there before is still there.
          MissingWorkerError: If another worker has failed or does not respond; what was there before is still there.

        >>> import os, tempfile
        >>> x = tf.constant(3.0)
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> path = os.path.join(tempfile.mkdtemp(), "square.tape")
        >>> _ = tape.save(path, x=x, y=y)
        >>> float(rt.load(path).gradient("y", "x"))
        6.0
        >>> tape.save(path, x=x, y=y, wait=False).result() == os.path.getsize(path)
        True
        """
        given = with_keywords(names, named)
        with current_stack().unrecorded():  # neither recomputed values nor host reads
            session = self._eager("save")
            wholes, program = session.trace.wholes.values(), session.trace.program
            communicates = any(eqn.op in COLLECTIVES for eqn in program.eqns)
            job = job_of(wholes) if wholes or communicates else None
            if job is None and communicates and session.trace.guard is None:
                raise TapeUseError(
                    "This tape has recorded collectives of several workers, and none of their variables, so it is not "
                    "known which workers save it. Say so: `with strategy.scope(): tape.save(...)`, on every worker."
                )
            if job is not None:
                from retrotape.files.shards import Options, save_shard  # imported late: most programs have one worker

                kept: dict[str, Any] = {"values": values, "redact": redact, "freeze": freeze, "code": code}
                snapshot = partial(self._snapshot, session, given, **kept)
                agreed = {"values": values, "redact": sorted(map(str, redact)), "freeze": sorted(map(str, freeze))}
                options = Options(overwrite, store, wait, timeout, {**agreed, "overwrite": overwrite})
                return save_shard(job, path, snapshot, options)
            now = self._snapshot(session, given, values=values, redact=redact, freeze=freeze, code=code)
            may_be_url = any(isinstance(place, str) and "://" in place for place in (path, store))
            if wait and not pending and not may_be_url:
                return now.prepare().write(path, overwrite=overwrite, store_in=store)
            from retrotape.files.target import Target, save_in_background, save_now  # imported late: rarely needed

            target = Target(path, overwrite=overwrite, store=store)
            return save_now(now, target) if wait else save_in_background(now, target)

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
        with current_stack().unrecorded():
            return self._snapshot(self._eager("size"), None, values=values).prepare().size()

    @locked
    def export_saved_model(self, path: Path, names: Mapping[str, Any] | None = None) -> None:
        """Write a SavedModel, which needs TensorFlow but not this library.

        `tf.saved_model.load(path)` gives an object with `replay`, from named inputs to named results, its variables,
        and a signature `gradient_of_<name>` for each result that is a scalar.

        Args:
          path: The folder.
          names: As for `save`. At least one result needs a name.
        """
        from retrotape.files.export import export_saved_model

        export_saved_model(self._eager("export_saved_model").trace, self._all_names(names), path)

    @locked
    def export_graph(self, directory: Path, names: Mapping[str, Any] | None = None) -> None:
        """Write the program as a graph for TensorBoard: `tensorboard --logdir directory`.

        Args:
          directory: The log directory of TensorBoard.
          names: As for `save`. At least one result needs a name.
        """
        from retrotape.files.export import export_graph

        export_graph(self._eager("export_graph").trace, self._all_names(names), directory)

    def _snapshot(self, session: EagerSession, names: Mapping[str, Any] | None, **options: Any) -> Snapshot:
        given = self._all_names(names)
        for part in _tensors_in(names):
            is_result = self._record_result(part, session)
            if not is_result and session.find(part) is None and session.why_absent(part) is None:
                session.var_of(part)  # made in the block, but by no op: as a target it can be named
        from retrotape.files.save import take_snapshot  # imported late: most programs save nothing

        return take_snapshot(session.trace, given, **options)

    def _all_names(self, names: Mapping[str, Any] | None) -> dict[str, Any]:
        if names is not None and not isinstance(names, Mapping):
            raise TypeError(f"names= takes a mapping, `{{'x': x, 'loss': loss}}`; got {type(names).__name__}.")
        return {**self._names(), **(names or {})}


def with_keywords(names: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the given names, including those given as keywords."""
    if not named:
        return names
    for name, value in named.items():
        if not any(isinstance(unwrap(part), (tf.Tensor, tf.Variable)) for part in tf.nest.flatten(value)):
            suggestion = did_you_mean(name, _OPTIONS)
            raise TypeError(
                f"save got {name}={value!r}, which is neither an option nor a tensor to be called {name!r}.{suggestion}"
            )
    if names is not None and not isinstance(names, Mapping):
        return names  # refused later
    duplicates = sorted(named.keys() & (names or {}).keys())
    if duplicates:
        raise TypeError(f"save got the name {duplicates[0]!r} twice, in names= and as a keyword; give it once.")
    return {**(names or {}), **named}


def _tensors_in(names: Any) -> Iterator[Any]:
    names = values_of(names) if isinstance(names, DistributedValues) else names
    if isinstance(names, (Mapping, list, tuple)):
        for item in names.values() if isinstance(names, Mapping) else names:
            yield from _tensors_in(item)
    elif isinstance(names, tf.Tensor):
        yield names
