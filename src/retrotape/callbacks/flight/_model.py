"""A model in `fit`: its variables, its train function, and its steps run again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from retrotape._types import Tensor
from retrotape.callbacks._draws import drawing_op, is_compiled_by_xla
from retrotape.callbacks._state import State, generator_states, undo
from retrotape.callbacks.flight._losses import difference, measured
from retrotape.callbacks.flight._recorded import RecordedStep, record_step, used_variables
from retrotape.callbacks.flight._search import Ran, numbers
from retrotape.callbacks.flight._variables import Variables, named_variables
from retrotape.errors import TapeUseError
from retrotape.tf.core import identity_of, tf
from retrotape.tf.keras_fit import is_of_keras, make_train_function
from retrotape.tf.scopes import again
from retrotape.tf.seeds import apart
from retrotape.tf.workers import job_of


class ObservedModel:
    """A model whose steps can be run again.

    Args:
      model: A compiled model.
      on_batch: Called with each batch that it is trained on; the step waits for the operations that it returns.
    """

    def __init__(self, model: Any, on_batch: Callable[[Any], list[Any]]) -> None:
        self.model, self.is_compiled_by_xla = model, is_compiled_by_xla(model)
        self.function = _observed_function(model, on_batch)
        self._others: list[Any] = []  # variables that steps use, and that belong neither to it nor to its optimizer
        self.variables = Variables({})  # until just before the first step: callbacks may still freeze layers

    def draws_otherwise(self, recorded: RecordedStep) -> str | None:
        """Return which op of a recorded step drew other numbers than it does in `fit`, and where; None if none did."""
        return drawing_op(recorded.tape.program) if self.is_compiled_by_xla else None

    def refresh(self) -> bool:
        """Look for new variables, such as those of metrics, which the first step makes; return whether there are."""
        fresh = self._found_variables(self.variables)
        if [*map(id, fresh.parts.values())] == [*map(id, self.variables.parts.values())]:
            return False
        self.variables = fresh
        return True

    def _found_variables(self, earlier: Variables | None) -> Variables:
        model, optimizer = self.model, self.model.optimizer
        if optimizer is not None and model.built and not optimizer.built:
            with model.distribute_strategy.scope():  # else its slots come with the first step, after the snapshot
                optimizer.build(model.trainable_variables)
        own = [*model.variables, *(() if optimizer is None else optimizer.variables), *generator_states(model)]
        variables = named_variables([*own, *model.metrics_variables, *self._others])
        of_metrics = set(variables) - set(named_variables([*own, *self._others]))
        return Variables(variables, of_metrics, earlier)

    @property
    def loss_scale(self) -> float | None:
        """The factor by which mixed precision scales the loss, where it does."""
        scale = getattr(self.model.optimizer, "dynamic_scale", None)
        return None if scale is None else float(scale.numpy())

    @contextmanager
    def rerunning(self) -> Iterator[None]:
        """Put everything back at the end: variables, and random generators."""
        self.refresh()
        held = State.of_model(self.model, self.variables.parts.values())
        try:
            with apart(secrets.randbits(31)):
                yield
        finally:
            again(held.put_back)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Assign the values of a snapshot; metrics that it does not know have just been reset."""
        parts = self.variables.parts
        if not parts.keys() <= values.keys():
            self.model.reset_metrics()
        for name in parts.keys() & values.keys():
            parts[name].assign(values[name])

    def run(self, data: Any) -> Ran:
        """Run a step with the function that `fit` uses."""
        scale = self.loss_scale
        try:
            logs, error = numbers(self.function(iter([data]))), None
        except Exception as raised:  # any: it may be what is looked for
            logs, error = None, raised
        now = self.loss_scale
        return Ran(logs, self.variables.read()[1], scale is not None and now is not None and now < scale, error)

    def record(self, data: Any) -> RecordedStep:
        """Run a step in eager code, and record it; put back the variables that are not known yet, and note them."""
        recorded = record_step(self.model, data, self.variables.named)
        undo(recorded.tape, {identity_of(part.handle) for part in self.variables.parts.values()}, "FlightRecorder")
        known = {id(variable) for variable in (*self.variables.named.values(), *self._others)}
        self._others += [variable for variable in used_variables(recorded.tape) if id(variable) not in known]
        return recorded

    def record_from(self, before: Sequence[Tensor], data: Any) -> tuple[RecordedStep, str]:
        """Record a step from a state; also return how its loss differs from that of the function that `fit` uses."""
        self.variables.restore(before)
        expected = measured(self.model, lambda: self.run(data).logs)
        self.variables.restore(before)
        found: list[RecordedStep] = []

        def run() -> Mapping[str, float]:
            found.append(self.record(data))
            return found[0].logs

        actual = measured(self.model, run)
        return found[0], difference(self.model, expected, actual)

    def record_template(self, data: Any) -> RecordedStep:
        """Record a step as most steps are: not one that is skipped since the loss scale is still too high."""
        if self.loss_scale is not None:
            self.model.optimizer.dynamic_scale.assign(1.0)
            self.model.optimizer.step_counter.assign(0)
        return self.record(data)


def _observed_function(model: Any, on_batch: Callable[[Any], list[Any]]) -> Callable[[Any], Any]:
    strategy = model.distribute_strategy
    with strategy.scope():
        if job_of(()) is not None or isinstance(strategy, tf.distribute.ParameterServerStrategy):
            raise TapeUseError(
                f"FlightRecorder runs steps again in one process, and {type(strategy).__name__} has several, which "
                "would wait for each other. Train in one process to find the step."
            )
    function = make_train_function(model, on_batch) if is_of_keras(model.train_function) else None
    if function is None:
        raise TapeUseError(
            f"{type(model).__name__} has a train function of its own, so FlightRecorder cannot see its batches. "
            "Override `train_step` instead, or record a custom loop: `with recorder.step(batch): ...`."
        )
    return function
