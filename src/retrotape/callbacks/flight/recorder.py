"""The flight recorder: when a training goes wrong, the step that did it is on a tape."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from typing import Any, Literal
from weakref import WeakSet

from retrotape.callbacks.flight._crash import Crash
from retrotape.callbacks.flight._fit import FitSession
from retrotape.callbacks.flight._folder import left_over
from retrotape.callbacks.flight._loop import LoopSession, Step
from retrotape.callbacks.flight._settings import Predicate, checked
from retrotape.errors import TapeUseError
from retrotape.tf import keras_api
from retrotape.tf.core import tf
from retrotape.tf.keras_fit import check_fit

_recorders: WeakSet[FlightRecorder] = WeakSet()


class FlightRecorder(tf.keras.callbacks.Callback):
    """Record the last steps of a training; when one goes wrong, leave that step as a tape that explains it.

    As a callback of Keras' `fit`, eager or compiled, or around each step of a custom loop. The batches since the last
    snapshot of the state are kept in files. When a loss or a weight is no longer finite, or a step raises, these steps
    run again, and the one that did it is recorded: a tape for `rt.load`, which needs no model code, a report, and one
    line on stderr. If the process is killed, `retrotape recover` does that afterwards.

    Args:
      dir: The folder for crashes, and for the recording while training runs. It is created.
      keep: How many crashes stay in the folder: the tapes and reports of older ones are removed.
      on: What a crash is. "nonfinite": a NaN or an infinity in the loss, in a weight or in a variable of the optimizer,
        or a loss scale that falls again and again; also a step that raises. "exception": only a step that raises. Or a
        function of the logs of a step, numbers by name: the first step for which it is true; also a step that raises.
      every: About how many steps two snapshots are apart. Large states are read less often, so that it costs little.
      stop: Stop `fit` once weights are no longer finite: no later step can repair them.

    Raises:
      NotADirectoryError: If `dir` is a file.

    >>> import tempfile
    >>> model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1, name="out")])
    >>> model.compile("sgd", loss=lambda y, pred: (tf.math.log(y) - pred) ** 2)
    >>> y = tf.constant([[1.0], [2.0], [0.0], [3.0]])
    >>> recorder = rt.FlightRecorder(tempfile.mkdtemp())
    >>> _ = model.fit(tf.ones([4, 2]), y, batch_size=1, shuffle=False, verbose=0, callbacks=[recorder])
    >>> recorder.crashes[0].step, recorder.crashes[0].nonfinite.cause.name
    (2, 'LOG_OF_ZERO')
    >>> tape = rt.load(recorder.crashes[0].tape)
    >>> tape["y"].numpy().item(), tape["out/kernel"].shape
    (0.0, TensorShape([2, 1]))
    """

    def __init__(
        self,
        dir: str | os.PathLike[str],
        keep: int = 3,
        on: Literal["nonfinite", "exception"] | Predicate = "nonfinite",
        *,
        every: int = 50,
        stop: bool = True,
    ) -> None:
        super().__init__()
        self._settings = checked(dir, keep, on, every, stop)
        self._fit: FitSession | None = None
        self._loop: LoopSession | None = None
        self.crashes: list[Crash] = []
        killed = list(left_over(self._settings.folder))
        if killed:
            count = f"{len(killed)} training{'s were' if len(killed) > 1 else ' was'}"
            command = f"retrotape recover {os.fspath(dir)}"
            warnings.warn(
                f"{count} killed while recording here. To get a tape of the last step: `{command}`.",
                RuntimeWarning,
                stacklevel=2,
            )

    # ------------------------------------------------------------------ in fit

    def set_model(self, model: Any) -> None:
        """Accept the model that is about to be trained; Keras calls it."""
        keras = keras_api.imported()
        if keras is None or not isinstance(model, keras.Model):
            raise TypeError(
                f"FlightRecorder is a callback for a Keras model, got {type(model).__name__}: "
                "`model.fit(..., callbacks=[rt.FlightRecorder('crashes')])`."
            )
        keras_api.refuse_other_backend(model, "the model of a FlightRecorder")
        if self._fit is not None and self._fit.model is not model and self._fit.is_running:
            raise TapeUseError("This FlightRecorder records another `fit`. Use one for each: `rt.FlightRecorder(...)`.")
        super().set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Start recording; Keras calls it."""
        if self._fit is not None:
            self._fit.end()  # an exception of another callback has ended it
        check_fit(keras_api.imported())
        self._fit = FitSession(self._settings, self.model, self._crashed)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Expect a step; Keras calls it."""
        if self._fit is not None:
            self._fit.is_expected = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take a snapshot before the next step; Keras calls it."""
        if self._fit is not None:
            self._fit.begin_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Look at the loss; Keras calls it."""
        if self._fit is not None:
            self._fit.end_epoch()

    def on_train_end(self, logs: Any = None) -> None:
        """Look at everything once more, and stop recording; Keras calls it."""
        if self._fit is not None:
            self._fit.finish()
            self._fit = None

    # ------------------------------------------------------------------ around a custom loop

    def step(self, batch: Any) -> Step:
        """Record one step of a custom loop: everything from its batch to its update belongs in the block.

        The first step on each shape of batches is recorded. When a later one goes wrong, it is replayed on the ops of
        that one. So that a replay can be compared with what ran, report the loss.

        Args:
          batch: The tensors that the step uses, as a nest. On the tape, a tuple is called x, y and sample_weight.

        >>> import tempfile
        >>> w, x = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
        >>> with rt.FlightRecorder(tempfile.mkdtemp()) as recorder:
        ...     for scale in [1.0, 1.0, 0.0, 1.0]:
        ...         factor = tf.constant(scale)
        ...         with recorder.step((x, factor)) as step:
        ...             loss = tf.reduce_sum(w * x) * tf.math.log(factor)
        ...             step.report(loss=loss)
        >>> recorder.crashes[0].step, rt.load(recorder.crashes[0].tape)["y"].numpy()
        (2, np.float32(0.0))
        """
        if self._loop is None:
            self._loop = LoopSession(self._settings, self._crashed)
            _recorders.add(self)
        return self._loop.step(batch)

    def close(self) -> None:
        """Look at the last steps of a custom loop, and stop recording; the end of the program does so too."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.finish()

    def __enter__(self) -> FlightRecorder:
        """Record a custom loop, up to the end of the block."""
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Look at the last steps, and stop recording."""
        self.close()

    def _crashed(self, crash: Crash) -> None:
        self.crashes.append(crash)
        print(crash.message, file=sys.stderr)


@atexit.register
def _close_all() -> None:
    for recorder in list(_recorders):
        recorder.close()
