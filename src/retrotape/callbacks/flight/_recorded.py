"""One step of `fit`, run in eager code and recorded, with names for what a reader asks about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.callbacks.flight._batches import named_batch
from retrotape.callbacks.flight._search import numbers
from retrotape.record import EagerSession, is_deterministic
from retrotape.tape.live import Tape
from retrotape.tf.core import EagerTensor, tf
from retrotape.tf.keras_fit import observed_losses
from retrotape.tf.nests import is_variable, unwrap


class RecordedStep(NamedTuple):
    """A step that ran once more.

    Attributes:
      tape: What it ran.
      names: Names for the batch, the loss and variables; only of what is on the tape.
      error: What it raised.
      logs: What it returned, as numbers.
    """

    tape: Tape
    names: dict[str, Any]
    error: Exception | None
    logs: dict[str, float]

    @property
    def remarks(self) -> list[str]:
        """What the reader of the tape has to know."""
        program = self.tape.program
        drawn = next((eqn for eqn in program.eqns if not is_deterministic(eqn.op)), None)
        if drawn is None:
            return []
        place = f"{drawn.op} at {program.frame_of(drawn)}"
        return [f"{place} gives something else each time: what it gave on the tape is not what it gave in the run."]


def record_step(model: Any, data: Any, variables: Mapping[str, Any]) -> RecordedStep:
    """Run the train step of a model on a batch, in eager code, and record it.

    Args:
      model: The model, whose variables it changes.
      data: The batch; under a strategy, one value for each replica.
      variables: What to call its variables.
    """
    losses, targets, error, returned = _Losses(), _Losses(), None, None
    step = getattr(model.train_step, "__wrapped__", model.train_step)  # not played back by `rt.keras.playback`
    with Tape() as tape, observed_losses(model, losses.add, targets.add):
        try:
            returned = model.distribute_strategy.run(step, args=(data,))
        except Exception as raised:  # any: it is what the user wants to know about
            error = raised
        found = losses.totals(tape) or targets.totals(tape)  # the sum over replicas is recorded too
    names = {f"loss_{number}" if number else "loss": loss for number, loss in enumerate(found)}
    batch = named_batch(data)
    names.update(zip(batch.names, batch.tensors, strict=True))
    return RecordedStep(tape, known(tape, {**variables, **names}), error, _means(model, returned))


def _means(model: Any, returned: Any) -> dict[str, float]:
    """Return the numbers that a step has returned, the mean over replicas as Keras does."""
    rows = [numbers(row) for row in model.distribute_strategy.experimental_local_results(returned)]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def known(tape: Tape, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names whose tensors or variables are on a tape."""
    session = tape._recorded()
    assert isinstance(session, EagerSession)
    return {name: part for name, part in names.items() if _is_known(session, unwrap(part))}


def _is_known(session: EagerSession, part: Any) -> bool:
    return bool(session.histories_of(part)) if is_variable(part) else session.find(part) is not None


def used_variables(tape: Tape) -> list[Any]:
    """Return the variables that what was recorded has read or assigned; those of a strategy as a whole."""
    trace = tape._recorded().trace
    wholes = [trace.wholes.get(key, part) for key, part in trace.variables.items()]
    return list({id(whole): whole for whole in wholes}.values())


class _Losses:
    """Scalars that replicas compute, in order; each replica has a thread of its own."""

    def __init__(self) -> None:
        self._found: dict[int, list[Tensor]] = {}

    def add(self, loss: Any) -> None:
        if isinstance(loss, EagerTensor) and loss.dtype.is_floating and loss.shape.rank == 0:
            replica = tf.distribute.get_replica_context()
            number = 0 if replica is None else int(replica.replica_id_in_sync_group)
            self._found.setdefault(number, []).append(loss)

    def totals(self, tape: Tape) -> list[Tensor]:
        """Return the sum of each loss over the replicas, of those on a tape: others come from other threads."""
        session = tape._recorded()
        own = [[loss for loss in found if session.find(loss) is not None] for found in self._found.values()]
        parts = zip(*filter(None, own), strict=False)
        return [part[0] if len(part) == 1 else tf.add_n(part) for part in parts]
