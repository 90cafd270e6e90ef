"""Logs gradients and activations while `fit` trains."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import keras

from retrotape.callbacks._draws import XLA, drawing_op, is_compiled_by_xla
from retrotape.callbacks._hooks import Fit, Hook, is_of_train_on_batch, remove_stale
from retrotape.callbacks._iterators import handed_on, take
from retrotape.callbacks._state import State, undo
from retrotape.errors import TapeUseError
from retrotape.tape.live import Tape
from retrotape.tf import keras_api
from retrotape.tf.core import tf
from retrotape.tf.scopes import again
from retrotape.tf.seeds import apart

Loss = Callable[[Any, Any], Any]
Log = Callable[[dict[str, float], int], Any]


class GradientLog(keras.callbacks.Callback):
    """Log the gradients and activations of a training step, every so many batches of `fit`.

    The step is recorded on a tape, in eager code, from the batch, weights and dropout masks that it had, and logged as
    `Tape.log` does. That is done beside the training, also where `fit` compiles it: weights, optimizer, metrics and
    random numbers are afterwards those of a training without this callback, to the bit. It takes the time of one step
    in eager code, and while it runs the memory of its activations and of two more copies of the weights.

    With `steps_per_execution`, the first of the steps that run together is logged. What `tf.random` draws in a layer is
    drawn anew; layers of Keras draw the same numbers. Python state of layers changes as by any forward pass.

    XLA draws other random numbers than eager code. A step that draws some, for dropout say, is therefore not logged if
    XLA compiles the training, as it does with `jit_compile=True` and by default on a GPU: a warning says so.

    Args:
      log: A folder or a writer of `tf.summary` for TensorBoard; or a function that takes a dictionary of metrics and
        the step, such as `wandb.log` or `mlflow.log_metrics`.
      every: How many steps from one that is logged to the next; the first is that of the first batch, if the model is
        built by then. Steps are counted by the optimizer, one for each batch, also where it accumulates gradients.
      loss: For a model with a `train_step` of its own: takes the model and a batch, and returns the loss.
      graph: As for `Tape.log`.

    >>> model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1, name="out")])
    >>> model.compile("sgd", "mse")
    >>> logged = []
    >>> callback = rt.callbacks.GradientLog(lambda metrics, step: logged.append((step, len(metrics))), every=2)
    >>> history = model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=2, verbose=0, callbacks=[callback])
    >>> logged
    [(0, 6), (2, 6)]
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | tf.summary.SummaryWriter | Log,
        every: int = 100,
        *,
        loss: Loss | None = None,
        graph: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(
                f"every= takes a number of batches, at least 1; got {every!r}: "
                "`rt.callbacks.GradientLog('logs', every=100)`."
            )
        if not (isinstance(log, (str, os.PathLike, tf.summary.SummaryWriter)) or callable(log)):
            raise TypeError(
                "GradientLog takes a folder, a writer of `tf.summary`, or a function of metrics and step; got "
                f"{type(log).__name__}: `rt.callbacks.GradientLog('logs', every=100)`."
            )
        if loss is not None and not callable(loss):
            raise TypeError(
                f"loss= takes a function of the model and a batch, got {type(loss).__name__}: "
                "`rt.callbacks.GradientLog('logs', loss=lambda model, batch: ...)`."
            )
        self._log, self._every, self._loss, self._graph = log, every, loss, graph
        self._writer: Any = log if isinstance(log, tf.summary.SummaryWriter) else None
        self._earlier = 0  # steps in earlier epochs
        self._due = 0  # the step that is logged next
        self._has_warned = False
        self._fit: Fit | None = None
        self._hook: Hook | None = None  # while a step is expected that is due

    def set_model(self, model: Any) -> None:
        """Take the model; raise if its loss is not known."""
        keras_api.refuse_other_backend(model, "model")
        step = getattr(model.train_step, "__wrapped__", model.train_step)  # `rt.keras.playback` wraps it
        if self._loss is None and getattr(step, "__func__", None) is not keras.Model.train_step:
            raise TapeUseError(
                f"{type(model).__name__} has a train_step of its own, so GradientLog does not know its loss. Give it: "
                "`GradientLog(..., loss=lambda model, batch: ...)`."
            )
        super().set_model(model)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Open the folder."""
        self._remove_hook()
        remove_stale(self.model)
        self._fit = Fit(self._remove_hook)
        if isinstance(self._log, (str, os.PathLike)):
            self._writer = tf.summary.create_file_writer(os.fspath(self._log))

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Write what is left."""
        if isinstance(self._log, (str, os.PathLike)):
            self._writer.close()
        elif self._writer is not None:
            self._writer.flush()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Find out how many steps there were: batches are numbered anew in each epoch."""
        self._earlier = _steps(self.model)
        self._due = min(self._due, self._earlier + self._every)  # another optimizer counts from 0

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Be there when the next batches are trained on, if one of them is due."""
        if self._earlier + batch >= self._due and self._fit is not None:
            self._remove_hook()
            self._hook = Hook(self.model, self._fit, self._train)

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _train(self, hook: Hook, iterator: Any) -> Any:
        """Train on the next batches, and log the first of them."""
        if is_of_train_on_batch(iterator):
            return hook.train(iterator)
        self._remove_hook()
        is_own = hook.fit.is_running  # else it is another `fit`, after one that has raised
        return self._train_and_log(hook.train, iterator) if is_own else hook.train(iterator)

    def _train_and_log(self, train: Callable[[Any], Any], iterator: Any) -> Any:
        model, strategy = self.model, self.model.distribute_strategy
        batches = take(iterator, model.steps_per_execution) if model.built else []
        if not batches:
            return train(iterator)
        known, step, before = len(model.variables), _steps(model), State.of_model(model)
        result = train(handed_on(batches, iterator, strategy))
        if len(model.variables) > known:  # a layer was built by this step, from weights that nobody has seen
            return result
        self._due = (step // self._every + 1) * self._every
        after = State.of_model(model)  # now: what training traces and builds, it has traced and built itself
        try:
            before.put_back()
            self._record(batches[0], step, after.handles())
        finally:
            again(after.put_back)
        return result

    def _record(self, batch: Any, step: int, known: set[int]) -> None:
        tape, strategy = Tape(), self.model.distribute_strategy
        with apart(Random(step).getrandbits(31)):
            try:
                with tape:
                    losses = strategy.run(self._loss_of, args=(batch,))
                target = list(strategy.experimental_local_results(losses))
                drawn = drawing_op(tape.program) if is_compiled_by_xla(self.model) else None
                if drawn is not None:
                    self._warn(drawn)
                elif self._writer is not None:
                    tape.log(self._writer, step, target, graph=self._graph)
                elif callable(self._log):
                    self._log(tape.backward(target).metrics(), step)
            finally:
                again(lambda: undo(tape, known, "GradientLog"))

    def _warn(self, drawn: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"GradientLog logs nothing of steps that draw random numbers: {drawn} draws some, `fit` compiles the "
                f"step with XLA, and {XLA}, so these would not be the gradients of the training. To log them: "
                "`model.compile(..., jit_compile=False)`.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _loss_of(self, batch: Any) -> Any:
        """Return the loss of a batch, computed as Keras' own `train_step` does."""
        batch = tf.nest.map_structure(_without_optional, batch)
        if self._loss is not None:
            return self._loss(self.model, batch)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        takes_training = "training" in inspect.signature(self.model.call).parameters
        prediction = self.model(x, training=True) if takes_training else self.model(x)
        return self.model.compute_loss(x=x, y=y, y_pred=prediction, sample_weight=sample_weight)


def _steps(model: Any) -> int:
    """Return how many steps the optimizer has made, those included that only accumulate gradients."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of mixed precision
    if optimizer.gradient_accumulation_steps is None:
        return int(optimizer.iterations.numpy())
    counters = [variable for variable in optimizer.variables if variable.name == "iteration"]
    return int(counters[0].numpy())


def _without_optional(item: Any) -> Any:
    """Return None for a part of a batch that is not there, as Keras does."""
    return None if isinstance(item, tf.experimental.Optional) else item
