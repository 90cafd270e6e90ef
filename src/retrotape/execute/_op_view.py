"""What TensorFlow's gradient functions get in place of a `tf.Operation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from retrotape._types import Tensor
from retrotape.ir import Eqn
from retrotape.record import for_rule
from retrotape.tf.core import tf


class LazyTensors(Sequence[Any]):
    """Tensors that are looked up when the rule reads them: most rules read only a few.

    Args:
      variables: Their vars.
      kept: The values that are in memory, by var.
      load: Returns a value that is not in memory.
    """

    __slots__ = ("_kept", "_load", "_vars")

    def __init__(self, variables: tuple[int, ...], kept: Mapping[int, Any], load: Callable[[int], Tensor]) -> None:
        self._vars, self._kept, self._load = variables, kept, load

    def __len__(self) -> int:
        return len(self._vars)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self._vars)))]
        var = self._vars[index]
        value = self._kept.get(var)
        return value if isinstance(value, tf.Tensor) else self._load(var)


class OpView:
    """An equation with the interface of `tf.Operation`, as gradient functions expect it."""

    __slots__ = ("_attrs", "inputs", "outputs", "skip_input_indices", "type")

    def __init__(
        self, eqn: Eqn, kept: Mapping[int, Any], load: Callable[[int], Tensor], skip: tuple[int, ...] | None
    ) -> None:
        self.type, self._attrs = eqn.op, eqn.attrs
        self.inputs, self.outputs = LazyTensors(eqn.inputs, kept, load), LazyTensors(eqn.outputs, kept, load)
        self.skip_input_indices = skip

    def get_attr(self, name: str) -> Any:
        """Return an attribute as `tf.Operation.get_attr` does."""
        return for_rule(dict(self._attrs)[name])
