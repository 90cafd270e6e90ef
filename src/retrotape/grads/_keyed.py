"""Gradients as a mapping: the gradient of each key, and why a key has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from retrotape import _html
from retrotape._types import Gradient
from retrotape.errors import ShapeMismatchError, UnknownSourceError
from retrotape.grads import _sparse as sparse
from retrotape.grads._show import as_html, as_rich, as_text
from retrotape.grads._table import Table, is_symbolic, name_of, tabulate
from retrotape.tf.core import CompositeTensor, tf, zeros
from retrotape.tf.nests import unwrap
from retrotape.tf.version import Version

if TYPE_CHECKING:
    from rich.console import RenderableType

_Self = TypeVar("_Self", bound="Keyed")


def _identity(key: Any) -> Any:
    """Return the identity of a key: one for a Keras variable and its `tf.Variable`, for equal versions and names."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, Version):
        return id(key.token), id(key.variable), key.number
    return id(unwrap(key))


def identities_of(keys: Iterable[Any]) -> list[Any]:
    """Return what tells keys apart."""
    return [_identity(key) for key in keys]


def aligned(vectors: Sequence[Keyed]) -> tuple[list[Any], list[list[Gradient]]]:
    """Return the keys of several vectors, and for each vector the gradients of all keys; None where there is none."""
    keys: dict[Any, Any] = {}
    for vector in vectors:
        if vector._keys.keys() != keys.keys():
            keys.update((identity, key) for identity, key in vector._keys.items() if identity not in keys)
    return list(keys.values()), [[vector._grads.get(identity) for identity in keys] for vector in vectors]


def _check(key: Any, grad: Gradient) -> None:
    """Raise if this is not a pair of a key and its gradient."""
    if isinstance(unwrap(grad), tf.Variable):
        raise TypeError("Gradients takes (variable, gradient) pairs, got them the other way round: swap the two.")
    if grad is None or not hasattr(key, "shape"):
        return
    if not isinstance(grad, (tf.Tensor, tf.IndexedSlices, CompositeTensor)):
        raise TypeError(f"Got {type(grad).__name__} as the gradient of {name_of(key)}; give a tensor.")
    if not tf.TensorShape(grad.shape).is_compatible_with(tf.TensorShape(key.shape)):
        raise ShapeMismatchError(
            f"Got a gradient of shape {tuple(grad.shape)} for {name_of(key)} of shape {tuple(key.shape)}; "
            "a gradient has the shape of its key."
        )


class Keyed:
    """The part of `Gradients` that is a mapping and a table. Gradients of a repeated key are summed."""

    __slots__ = ("_grads", "_keys", "_reasons")

    def __init__(
        self, gradients: Iterable[tuple[Any, Gradient]], reasons: Iterable[tuple[Any, str]] | None = None
    ) -> None:
        self._keys: dict[Any, Any] = {}
        self._grads: dict[Any, Gradient] = {}
        self._reasons: dict[Any, tuple[str, ...]] = {}  # several where missing gradients were summed
        if isinstance(gradients, Mapping):
            raise TypeError("Gradients takes pairs, got a mapping: `rt.Gradients(mapping.items())`.")
        for key, grad in gradients:
            if isinstance(grad, (np.ndarray, np.generic)) and hasattr(key, "dtype"):
                grad = tf.convert_to_tensor(grad, key.dtype)
            _check(key, grad)
            identity = _identity(key)
            if sparse.is_sparse(grad) and grad.dense_shape is None:
                grad = tf.IndexedSlices(grad.values, grad.indices, tf.constant(key.shape))
            self._grads[identity] = sparse.add(self._grads.get(identity), grad)
            self._keys.setdefault(identity, key)
        self._add_reasons(reasons or ())

    def _add_reasons(self, reasons: Iterable[tuple[Any, str]]) -> None:
        for key, reason in reasons:
            identity = _identity(key)
            known = self._reasons.get(identity, ())
            if self._grads.get(identity, reason) is None and reason not in known:
                self._reasons[identity] = (*known, reason)

    @classmethod
    def of_query(
        cls: type[_Self],
        keys: Sequence[Any],
        grads: Sequence[Gradient],
        reasons: Mapping[int, str] = {},
        identities: Sequence[Any] | None = None,
    ) -> _Self:
        """Return the results of a query: keys are distinct, and gradients fit, so neither is checked.

        Args:
          keys: The sources.
          grads: Their gradients.
          reasons: By position, why a source has none.
          identities: What `identities_of` returns for the keys, if several queries have the same.
        """
        if tf.IndexedSlices in map(type, grads):
            return cls(zip(keys, grads, strict=True), [(keys[position], text) for position, text in reasons.items()])
        found = cls((), ())
        identities = identities_of(keys) if identities is None else identities
        found._keys = dict(zip(identities, keys, strict=True))
        found._grads = dict(zip(identities, grads, strict=True))
        found._reasons = {identities[position]: (text,) for position, text in reasons.items()}
        return found

    def _like(self: _Self, gradients: Iterable[tuple[Any, Gradient]]) -> _Self:
        """Return other gradients for the same keys; those that are still missing keep their reasons."""
        return type(self)(gradients, self.reasons())

    def reasons(self) -> list[tuple[Any, str]]:
        """Return pairs of key and text: why a key has no gradient, as `Gradients` takes them.

        >>> v = tf.Variable(1.0, name="v")
        >>> [(key.name, text) for key, text in rt.Gradients([(v, None)], [(v, "it was not used")]).reasons()]
        [('v:0', 'it was not used')]
        """
        return [(self._keys[identity], reason) for identity, known in self._reasons.items() for reason in known]

    def _find(self, key: Any) -> Any:
        """Return the identity of a key; for a name, that of the only key whose name is, or ends with, this name."""
        if not isinstance(key, str):
            return _identity(key)
        names = {identity: name_of(known) for identity, known in self._keys.items()}
        whole = [identity for identity, name in names.items() if name == key]
        found = whole or [identity for identity, name in names.items() if name.endswith(f"/{key}")]
        return found[0] if len(found) == 1 else None

    def _known(self, key: Any) -> Any:
        identity = self._find(key)
        if identity not in self._keys:
            name = repr(key) if isinstance(key, str) else name_of(key)
            raise UnknownSourceError(name, [name_of(known) for known in self._keys.values()], isinstance(key, str))
        return identity

    # ------------------------------------------------------------------ a mapping

    def __getitem__(self, key: Any) -> Gradient:
        """Return the gradient of a key, or of its name: zeros where it is missing."""
        identity = self._known(key)
        grad, key = self._grads[identity], self._keys[identity]
        if grad is not None:
            return grad
        if isinstance(key, tf.Tensor) and not key.shape.is_fully_defined():
            return tf.zeros_like(key)
        return zeros(key.shape, key.dtype)

    def __iter__(self) -> Iterator[Any]:
        # A mapping would iterate over the variables, and `zip(grads, weights)` would apply weights as gradients.
        raise TypeError(
            "Gradients are keyed by variable, and iterating over them is ambiguous: use `grads.apply(optimizer)`, "
            "or `grads.values()`, `.keys()`, `.items()`, or `.pairs()` for `apply_gradients`."
        )

    def __len__(self) -> int:
        return len(self._keys)

    def _ipython_key_completions_(self) -> list[str]:
        return [name_of(key) for key in self._keys.values() if not isinstance(key, tf.Tensor)]

    def __contains__(self, key: Any) -> bool:
        return self._find(key) in self._keys

    def get(self, key: Any) -> Gradient:
        """Return the gradient of a key as it is: None where it is missing, or the key unknown.

        >>> v = tf.Variable(1.0)
        >>> grads = rt.Gradients([(v, None)])
        >>> print(grads.get(v), float(grads[v]))
        None 0.0
        """
        return self._grads.get(self._find(key))

    def keys(self) -> list[Any]:
        """Return the variables.

        >>> v = tf.Variable(1.0, name="v")
        >>> [key.name for key in rt.Gradients([(v, None)]).keys()]
        ['v:0']
        """
        return list(self._keys.values())

    def values(self) -> list[Gradient]:
        """Return the gradients in the order of `keys`; None where there is none.

        >>> v, w = tf.Variable(1.0), tf.Variable(1.0)
        >>> rt.Gradients([(v, tf.constant(2.0)), (w, None)]).values()[1] is None
        True
        """
        return [grad for grad, _ in self.pairs()]

    def items(self) -> list[tuple[Any, Gradient]]:
        """Return (variable, gradient) pairs; None where there is no gradient.

        >>> v = tf.Variable(1.0, name="v")
        >>> [(key.name, float(grad)) for key, grad in rt.Gradients([(v, tf.constant(2.0))]).items()]
        [('v:0', 2.0)]
        """
        return [(key, grad) for grad, key in self.pairs()]

    def pairs(self) -> list[tuple[Gradient, Any]]:
        """Return (gradient, variable) pairs, as `apply_gradients` takes them; None where there is no gradient.

        >>> v = tf.Variable(1.0, name="v")
        >>> [(float(grad), key.name) for grad, key in rt.Gradients([(v, tf.constant(2.0))]).pairs()]
        [(2.0, 'v:0')]
        """
        return [(self._grads[identity], key) for identity, key in self._keys.items()]

    @property
    def missing(self) -> tuple[Any, ...]:
        """The keys that have no gradient; `why` returns the reason.

        >>> a, b = tf.Variable(1.0, name="a"), tf.Variable(2.0, name="b")
        >>> [key.name for key in rt.Gradients([(a, tf.constant(1.0)), (b, None)]).missing]
        ['b:0']
        """
        return tuple(key for grad, key in self.pairs() if grad is None)

    def why(self, key: Any) -> str:
        """Return why a key has no gradient.

        Args:
          key: One of the keys.

        Returns:
          The reason, several of them joined by "; " where the parts of a sum were missing for different ones. For a
          key that has a gradient, a sentence that says so.

        Raises:
          UnknownSourceError: If there is no such key.

        >>> used, unused = tf.Variable(1.0, name="used"), tf.Variable(2.0)
        >>> with rt.Tape() as tape:
        ...     loss = used * 3.0
        >>> grads = tape.backward(loss, [used, unused])
        >>> grads.why(unused)
        'it was not read on this tape'
        >>> grads.why(used)
        'There is a gradient with respect to used.'
        """
        identity = self._known(key)
        if self._grads[identity] is not None:
            return f"There is a gradient with respect to {name_of(self._keys[identity])}."
        return self._reason(self._keys[identity]) or "no reason is known"

    def _reason(self, key: Any) -> str:
        return "; ".join(self._reasons.get(_identity(key), ()))

    def only(self: _Self, *keys: Any) -> _Self:
        """Return the part that belongs to these keys.

        >>> a, b = tf.Variable(1.0), tf.Variable(2.0)
        >>> grads = rt.Gradients([(a, tf.constant(3.0)), (b, tf.constant(4.0))])
        >>> float(grads.norm()), float(grads.only(b).norm())
        (5.0, 4.0)
        """
        wanted = {self._known(key) for key in tf.nest.flatten(keys)}
        return self._where(lambda identity: identity in wanted)

    def without(self: _Self, *keys: Any) -> _Self:
        """Return the part that does not belong to these keys.

        >>> a, b = tf.Variable(1.0), tf.Variable(2.0)
        >>> float(rt.Gradients([(a, tf.constant(3.0)), (b, tf.constant(4.0))]).without(b).norm())
        3.0
        """
        unwanted = {self._find(key) for key in tf.nest.flatten(keys)}
        return self._where(lambda identity: identity not in unwanted)

    def _where(self: _Self, keep: Callable[[Any], bool]) -> _Self:
        return self._like([(self._keys[identity], grad) for identity, grad in self._grads.items() if keep(identity)])

    # ------------------------------------------------------------------ a table

    def __repr__(self) -> str:
        return self._symbolic() or as_text(self._table())

    def __rich__(self) -> RenderableType:
        return self._symbolic() or as_rich(self._table())

    def _repr_html_(self) -> str:
        return _html.text(self._symbolic()) if self._symbolic() else as_html(self._table())

    def _table(self) -> Table:
        return tabulate(self.pairs(), self._reason)

    def _symbolic(self) -> str:
        """Return what to show inside a tf.function, where there are no values to tabulate; "" elsewhere."""
        return f"<Gradients of {len(self)} variables, symbolic>" if is_symbolic(self.pairs()) else ""


def in_order(vectors: Any, keys: Iterable[Any]) -> Any:
    """Return the gradients of some keys as a list; what is not `Gradients` as it is."""
    return [vectors[key] for key in keys] if isinstance(vectors, Keyed) else vectors
