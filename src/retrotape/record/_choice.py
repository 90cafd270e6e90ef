"""Which of the programs that a block recorded before comes next, where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape.record._attributes import canonical
from retrotape.record._template import Template
from retrotape.tf.core import shape_of


class Choice:
    """The templates of a block, of which those that are the same so far can replace each other.

    Attributes:
      template: The one that is followed.
      index: How many of its equations have run.
      count: How many of its vars exist.
    """

    def __init__(self, template: Template, others: Sequence[Template]) -> None:
        self.template, self._others = template, others
        self.index = self.count = 0

    def candidates(self) -> list[Template]:
        """Return the template, and others that are the same so far."""
        others = [one for one in self._others if one is not self.template and len(one.eqns) >= self.index]
        return [self.template, *(one for one in others if one.agrees(self.template, self.index))]

    def ending(self) -> Template | None:
        """Return the template that ends here, if there is one."""
        shorter = [one for one in self._others if len(one.eqns) == self.index and len(one.types) == self.count]
        return next((one for one in shorter if one.agrees(self.template, self.index)), None)

    def expecting(self, event: Any, tried: Sequence[Template]) -> Template | None:
        """Return another template that is the same so far, and expects an event; None if there is none."""
        for other in self._others:
            if other in tried or len(other.eqns) <= self.index:
                continue
            if other.agrees(self.template, self.index) and self._expects(other, event):
                return other
        return None

    def _expects(self, template: Template, event: Any) -> bool:
        op, _, attrs, outputs, place, _, _ = event
        eqn, name = template.eqns[self.index], op if type(op) is str else op.decode()
        if eqn.op != name or template.step(self.index)[6] != place:
            return False
        kinds = [template.types[var].shape for var in eqn.outputs]
        return all(shape_of(tensor) == shape for tensor, shape in zip(outputs, kinds, strict=False)) and (
            canonical(name, attrs) == eqn.attrs
        )
