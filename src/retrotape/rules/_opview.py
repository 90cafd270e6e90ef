"""What a gradient function of TensorFlow is shown in place of an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload


class Tensors(Sequence[Any]):
    """Tensors that are fetched when the rule looks at them: most rules do not look at all."""

    __slots__ = ("_fetch", "_vars")

    def __init__(self, variables: tuple[int, ...], fetch: Callable[[int], Any]) -> None:
        self._vars, self._fetch = variables, fetch

    def __len__(self) -> int:
        return len(self._vars)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._fetch(var) for var in self._vars[index]]
        return self._fetch(self._vars[index])


class OpView:
    """An equation, dressed as the `tf.Operation` that gradient functions were written for."""

    __slots__ = ("_attr", "inputs", "outputs", "skip_input_indices", "type")

    def __init__(
        self,
        kind: str,
        attr: Callable[[str], Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        skip_input_indices: tuple[int, ...] | None,
    ) -> None:
        self.type = kind
        self._attr = attr
        self.inputs, self.outputs = inputs, outputs
        self.skip_input_indices = skip_input_indices

    def get_attr(self, name: str) -> Any:
        """Return an attribute as `tf.Operation.get_attr` does."""
        return self._attr(name)
