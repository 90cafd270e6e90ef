"""Run calls of `tf.function`s such that they can be differentiated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

from retrotape._types import Tensor
from retrotape.record._frames import here
from retrotape.record._functions import function_traits, keras_variables_in
from retrotape.record._interpret import run_op_by_op
from retrotape.record._replicas import Replicas
from retrotape.tf import functions, hooks, tangents
from retrotape.tf.core import stock_tape_listens, tf
from retrotape.tf.function_gradients import build_gradient
from retrotape.tf.hooks_ops import WriteStamp
from retrotape.tf.scopes import setting
from retrotape.tf.stock import watching

_not_watched: WeakSet[Any] = WeakSet()  # functions whose gradient TensorFlow can't build or compile
_NOT_COMPILED = ("XLA compilation requires", "TensorList crossing the XLA/TF boundary")
_OUTSIDE = 4  # frames from `here` past the hook to the calling code


class Calls(Replicas):
    """Runs the functions called on one thread."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[hooks.FunctionCall] = []  # still running
        self._stamp = WriteStamp(0, {})  # the writes of the function that is running

    def _reset(self) -> None:
        super()._reset()
        self._calls = []

    @abstractmethod
    def add_choice(self, tensor: Tensor) -> None:
        """Record that a value decided the control flow of a function that is run op by op."""

    @abstractmethod
    def add_moments(self, tensor: Tensor) -> None:
        """Record that `tf.nn.moments`, in a function that is rerun, stopped the gradient of a tensor."""

    @abstractmethod
    def emit(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Record `backward` as the backward function from `outputs` to `inputs`, whatever ops produced them."""

    def on_call(self, call: hooks.FunctionCall) -> Any:
        """Run a `tf.function` such that it can be differentiated."""
        if not self.active:
            return self._run_unrecorded(call)
        self._notify_paused(call.written())
        if function_traits(call.function).op_by_op:
            return self._run_op_by_op(call)
        given = tangents.tangents_for(call)
        if given is None:
            return self._call(call, call)
        functions.access_variables(call.function)
        with self.unrecorded():
            wide, narrow = tangents.widened(call, given)
        return tangents.narrowed(call, wide, self._call(wide, narrow))

    def _call(self, call: hooks.FunctionCall, given: hooks.FunctionCall) -> Any:
        """Run `given`, which is `call` with some of its inputs copied."""
        self._read_unheld(tensor for tensor in call.arguments + call.captures if tensor.dtype == tf.resource)
        self.flush()
        for owner in keras_variables_in(call.function):
            self.on_keras_variable(owner)
        with setting(self, _calls=[*self._calls, call]):
            try:
                return self._run_watched(call, given)
            finally:
                self.dispatch()

    def _run_op_by_op(self, call: hooks.FunctionCall) -> Any:
        function, inputs = call.function, call.arguments + call.captures
        for owner in keras_variables_in(function):
            self.on_keras_variable(owner)
        for variable in functions.graph_of(function).variables:
            self.on_variable(variable)
        with setting(self, place=self.place or here(_OUTSIDE)):
            name, graph = functions.function_name(function), functions.graph_of(function)
            results = run_op_by_op(self, name, inputs, graph, effects=True)
        return functions.structured(function, results)

    def _run_watched(self, call: hooks.FunctionCall, given: hooks.FunctionCall) -> Any:
        """Run a function such that TensorFlow keeps what its first derivative needs, if it can.

        If it can't, the call still runs. A later derivative through it is computed from its ops, one by one.
        """
        function, known = call.function, function_traits(call.function)
        inputs = given.arguments + given.captures
        # XLA may fail to compile the lists of intermediate values, when effects of the function have already run.
        loops = known.compiled_loop_inside and known.deterministic and not known.compiled
        if function in _not_watched or loops or (not known.deterministic and self._is_only_observed()):
            return self._run_unwatched(call, given)
        redraws = known.recomputes and not known.deterministic
        # With random ops inside, only TensorFlow's own record of the call knows what was drawn, and it records
        # enough for every order only under a persistent tape.
        with (
            hooks.keep_recomputed(function) if redraws else nullcontext(),
            watching(inputs, persistent=not known.deterministic),
        ):
            try:
                captured = build_gradient(function, inputs)
            except MemoryError:
                raise
            except Exception:  # raised by user code, for a derivative that may never be requested
                _not_watched.add(function)
            else:
                self._read_unheld(tensor for tensor in captured if tensor.dtype == tf.resource)
                try:
                    return self._run_stamped(call, given)
                except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
                    if not (known.compiled and any(text in str(error) for text in _NOT_COMPILED)):
                        raise
                    _not_watched.add(function)  # compilation failed, so nothing has run
        return self._run_unwatched(call, given)

    def _is_only_observed(self) -> bool:
        """Return whether nothing records what runs to differentiate it.

        Then a function that draws has to run as it does without us: watched, it is another one for TensorFlow, whose
        generators begin anew.
        """
        return all(one.observer is not None for one in self.active) and not stock_tape_listens()

    def _run_unwatched(self, call: hooks.FunctionCall, given: hooks.FunctionCall) -> Any:
        for variable in functions.graph_of(call.function).variables:  # TensorFlow reports only what is watched
            self.on_variable(variable)
        return self._run_stamped(call, given)

    def _run_stamped(self, call: hooks.FunctionCall, given: hooks.FunctionCall) -> Any:
        self._stamp = call.stamp_writes()
        return given.run()

    def _run_unrecorded(self, call: hooks.FunctionCall) -> Any:
        written = call.written(only_initialized=True)
        self._notify_paused(written)
        stamp = call.stamp_writes()
        result = call.run()
        self.on_updated(stamp)
        return result
