"""Which tensors stand for which vars, by identity: an identity is never reused."""

from __future__ import annotations

from collections.abc import Iterable

from retrotape._types import Tensor
from retrotape.tf import core
from retrotape.tf.core import identity_of


class TensorMap:
    """The tensors by which the vars of a trace are known. Several may stand for one var."""

    __slots__ = ("by_identity",)

    def __init__(self, by_identity: dict[int, int] | None = None) -> None:
        self.by_identity: dict[int, int] = {} if by_identity is None else by_identity

    def find(self, tensor: Tensor) -> int | None:
        """Return the var that `tensor` stands for, None where it was not used."""
        return self.by_identity.get(identity_of(tensor))

    def get(self, identity: int) -> int | None:
        """Return the var of the tensor of that identity."""
        return self.by_identity.get(identity)

    def items(self) -> Iterable[tuple[int, int]]:
        """Return the identity of every tensor that was used, with its var."""
        return self.by_identity.items()

    def identities(self) -> dict[int, list[int]]:
        """Return, for each var, the identities of the tensors that stand for it."""
        found: dict[int, list[int]] = {}
        for identity, var in self.by_identity.items():
            found.setdefault(var, []).append(identity)
        return found

    def alias(self, identity: int, var: int) -> None:
        """Let the tensor of that identity, which may be gone, stand for `var` from now on."""
        self.by_identity[identity] = var

    def recognize(self, identity: int, earlier: Iterable[int | None]) -> None:
        """Let a tensor stand for the same var as one of the earlier identities, if one of them is known."""
        for other in earlier:
            var = None if other is None else self.by_identity.get(other)
            if var is not None:
                self.by_identity[identity] = var
                return

    def forget(self, identity: int) -> None:
        """Let a tensor stand for nothing."""
        self.by_identity.pop(identity, None)

    def new_identity(self, var: int) -> int:
        """Return an identity that no tensor has, by which `var` is known too."""
        identity = core.next_id()
        self.by_identity[identity] = var
        return identity

    def copy(self) -> TensorMap:
        """Return a map of its own."""
        return TensorMap(self.by_identity.copy())
