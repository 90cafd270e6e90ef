"""Map tensors to vars by identity, which is never reused."""

from __future__ import annotations

from collections.abc import Iterable

from retrotape._types import Tensor
from retrotape.tf import core
from retrotape.tf.core import identity_of


class TensorMap:
    """The tensors of a trace and their vars. Several tensors may have the same var.

    Attributes:
      by_identity: The vars.
      captured: Identities that stay known when a recomputed value is released.
      recomputed: For tensors that another trace recomputed while neither was known here: by identity of the original,
        that of the copy. If one of them is used, the other one is the same var.
    """

    __slots__ = ("by_identity", "captured", "recomputed")

    def __init__(self, by_identity: dict[int, int] | None = None, captured: Iterable[int] = ()) -> None:
        self.by_identity: dict[int, int] = {} if by_identity is None else by_identity
        self.captured = set(captured)
        self.recomputed: dict[int, int] = {}

    def find(self, tensor: Tensor) -> int | None:
        """Return the var of `tensor`; None if it was not used."""
        return self.by_identity.get(identity_of(tensor))

    def get(self, identity: int) -> int | None:
        """Return the var of the tensor with an identity; None if it was not used."""
        return self.by_identity.get(identity)

    def items(self) -> Iterable[tuple[int, int]]:
        """Return pairs of tensor identity and var."""
        return self.by_identity.items()

    def identities(self) -> dict[int, list[int]]:
        """Return, for each var, the identities of its tensors."""
        found: dict[int, list[int]] = {}
        for identity, var in self.by_identity.items():
            found.setdefault(var, []).append(identity)
        return found

    def alias(self, identity: int, var: int) -> None:
        """Map the tensor with an identity, which may no longer exist, to `var`."""
        self.by_identity[identity] = var

    def recognize(self, identity: int, earlier: Iterable[int | None]) -> None:
        """Map a tensor to the same var as the first known one of the earlier identities; if none is, remember it."""
        others = [other for other in earlier if other is not None]
        for other in others:
            var = self.resolve(other)
            if var is not None:
                self.by_identity[identity] = var
                return
        self.recomputed.update(dict.fromkeys(others, identity))

    def resolve(self, identity: int) -> int | None:
        """Return the var of a tensor, or of a recomputed copy of it; None if neither was used."""
        var = self.by_identity.get(identity)
        if var is None and identity in self.recomputed:
            var = self.by_identity.get(self.recomputed[identity])
            if var is not None:
                self.by_identity[identity] = var
        return var

    def forget(self, identity: int) -> None:
        """Remove a tensor."""
        self.by_identity.pop(identity, None)

    def capture(self, tensors: Iterable[Tensor]) -> None:
        """Keep these tensors known after their release: the backward function of a custom gradient may hold them."""
        self.captured.update(map(identity_of, tensors))

    def new_identity(self, var: int) -> int:
        """Return a new identity, that of no tensor, mapped to `var`."""
        identity = core.next_id()
        self.by_identity[identity] = var
        return identity

    def copy(self) -> TensorMap:
        """Return an independent copy."""
        copy = TensorMap(self.by_identity.copy(), self.captured)
        copy.recomputed = self.recomputed.copy()
        return copy
