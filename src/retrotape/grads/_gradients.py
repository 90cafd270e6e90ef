"""Gradients as vectors: keyed by what they are the gradient of, safe with None, safe with sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from retrotape._tf import tf
from retrotape.errors import ShapeMismatchError, UnknownSourceError
from retrotape.grads import _clip as clipping
from retrotape.grads import _sparse as sparse
from retrotape.grads._apply import apply
from retrotape.grads._show import name_of, render

Tensor = Any
Gradient = Any


def _identity(key: Any) -> int:
    """Return what makes two keys the same: a Keras variable and the `tf.Variable` in it are."""
    inner = getattr(key, "_value", None)
    return id(inner if isinstance(inner, tf.Variable) else key)


class Gradients:
    """The gradient of something by several variables or tensors, as one vector.

    It never changes; every operation gives a new one. A key without gradient is the zero vector there, and
    `missing` still tells that there was none. Sparse gradients stay sparse wherever that has a meaning.

    Args:
      gradients: Pairs of key and gradient; None where there is none.

    >>> a, b = tf.Variable([1.0, 2.0], name="a"), tf.Variable(3.0, name="b")
    >>> first = Gradients([(a, tf.constant([3.0, 0.0])), (b, None)])
    >>> second = Gradients([(a, tf.constant([0.0, 2.0])), (b, tf.constant(6.0))])
    >>> float((first + 2.0 * second).norm())
    13.0
    """

    __slots__ = ("_grads", "_keys")
    __array_ufunc__ = None  # NumPy leaves `number * gradients` to us

    def __init__(self, gradients: Iterable[tuple[Any, Gradient]]) -> None:
        self._keys: dict[int, Any] = {}
        self._grads: dict[int, Gradient] = {}
        for key, grad in gradients:
            identity = _identity(key)
            if sparse.is_sparse(grad) and grad.dense_shape is None:
                grad = tf.IndexedSlices(grad.values, grad.indices, tf.constant(key.shape))
            self._grads[identity] = sparse.add(self._grads.get(identity), grad)
            self._keys.setdefault(identity, key)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Tensor:
        # Not a `collections.abc.Mapping` and not a tensor: TensorFlow takes the one apart and would stack the other.
        raise TypeError("Gradients are several tensors; use `flatten()` for one.")

    # ------------------------------------------------------------------ a mapping

    def __getitem__(self, key: Any) -> Gradient:
        """Return the gradient of a key: zeros where it is missing."""
        identity = _identity(key)
        if identity not in self._keys:
            raise UnknownSourceError(name_of(key), [name_of(known) for known in self._keys.values()])
        grad = self._grads[identity]
        return tf.zeros(key.shape, key.dtype) if grad is None else grad

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Any) -> bool:
        return _identity(key) in self._keys

    def get(self, key: Any) -> Gradient:
        """Return the gradient of a key as it is: None where it is missing, or the key unknown."""
        return self._grads.get(_identity(key))

    def items(self) -> list[tuple[Any, Gradient]]:
        """Return (variable, gradient) pairs; None where there is no gradient."""
        return [(key, grad) for grad, key in self.pairs()]

    def pairs(self) -> list[tuple[Gradient, Any]]:
        """Return (gradient, variable) pairs, as `apply_gradients` takes them; None where there is no gradient."""
        return [(self._grads[identity], key) for identity, key in self._keys.items()]

    @property
    def missing(self) -> tuple[Any, ...]:
        """The keys to which no path led."""
        return tuple(key for grad, key in self.pairs() if grad is None)

    def only(self, *keys: Any) -> Gradients:
        """Return the part that belongs to these keys."""
        wanted = {_identity(key) for key in tf.nest.flatten(keys)}
        unknown = wanted - self._keys.keys()
        if unknown:
            named = next(key for key in tf.nest.flatten(keys) if _identity(key) in unknown)
            raise UnknownSourceError(name_of(named), [name_of(known) for known in self])
        return self._from(lambda identity, grad: identity in wanted)

    def without(self, *keys: Any) -> Gradients:
        """Return the part that does not belong to these keys."""
        unwanted = {_identity(key) for key in tf.nest.flatten(keys)}
        return self._from(lambda identity, grad: identity not in unwanted)

    def _from(self, keep: Callable[[int, Gradient], bool]) -> Gradients:
        return Gradients([(self._keys[i], grad) for i, grad in self._grads.items() if keep(i, grad)])

    # ------------------------------------------------------------------ a vector

    def map(self, function: Callable[[Gradient], Gradient]) -> Gradients:
        """Apply a function to each gradient that is there."""
        return Gradients([(key, None if grad is None else function(grad)) for grad, key in self.pairs()])

    def __add__(self, other: Gradients) -> Gradients:
        if not isinstance(other, Gradients):
            return NotImplemented
        return Gradients([*self.items(), *other.items()])

    def __radd__(self, other: Any) -> Gradients:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # so that `sum` works

    def __neg__(self) -> Gradients:
        return self * -1.0

    def __sub__(self, other: Gradients) -> Gradients:
        return self + -other if isinstance(other, Gradients) else NotImplemented

    def __mul__(self, factor: Any) -> Gradients:
        if isinstance(factor, Gradients):
            raise TypeError("Two Gradients have an inner product, `a @ b`, but no product; scale by a number.")
        return self.map(lambda grad: sparse.scale(grad, factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Gradients:
        return self * (1.0 / tf.cast(divisor, tf.float64))

    def __matmul__(self, other: Gradients) -> Tensor:
        return self.dot(other) if isinstance(other, Gradients) else NotImplemented

    def dot(self, other: Gradients) -> Tensor:
        """Return the inner product with another vector."""
        terms = [sparse.dot(self._grads[i], other._grads.get(i)) for i in self._grads]
        return _total([term for term in terms if term is not None])

    def norm(self) -> Tensor:
        """Return the Euclidean norm; a row of a sparse gradient that is named twice counts as its sum."""
        return tf.sqrt(_total([sparse.square(grad) for grad in self._grads.values() if grad is not None]))

    def norms(self) -> list[tuple[str, float]]:
        """Return the name and the norm of each gradient."""
        return [
            (name_of(key), 0.0 if grad is None else float(tf.sqrt(sparse.square(grad)))) for key, grad in self.items()
        ]

    def sum(self) -> Tensor:
        """Return the sum of all elements."""
        values = [grad.values if sparse.is_sparse(grad) else grad for grad in self._grads.values() if grad is not None]
        return _total([tf.reduce_sum(tf.cast(value, sparse.wide(value.dtype))) for value in values])

    def is_finite(self) -> Any:
        """Say whether no element is infinite or not a number; inside a tf.function, as a tensor."""
        there = [tf.abs(sparse.values_of(grad)) for grad in self._grads.values() if grad is not None]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(values)) for values in there])
        return bool(finite) if tf.executing_eagerly() else finite

    def is_close(self, other: Gradients, rtol: float = 1e-5, atol: float = 1e-6) -> bool:
        """Say whether two vectors are the same up to rounding, where missing is zero."""
        difference, size = float((self - other).norm()), float(other.norm())
        return difference <= atol + rtol * size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gradients):
            return NotImplemented
        apart = (self - other)._grads.values()
        return all(grad is None or not bool(tf.reduce_any(sparse.values_of(grad) != 0)) for grad in apart)

    __hash__ = None  # type: ignore[assignment]

    def flatten(self) -> Tensor:
        """Return one dense vector over all keys, in their order and in the widest of their dtypes."""
        dense = [tf.reshape(tf.convert_to_tensor(self[key]), [-1]) for key in self]
        dtype = max((value.dtype for value in dense), key=lambda dtype: dtype.size, default=tf.float32)
        return tf.concat([tf.cast(value, dtype) for value in dense], 0) if dense else tf.zeros([0])

    def unflatten(self, vector: Tensor) -> Gradients:
        """Return the gradients that `flatten` makes this vector of."""
        vector = tf.reshape(tf.convert_to_tensor(vector), [-1])
        sizes = [tf.TensorShape(key.shape).num_elements() for key in self]
        if vector.shape.num_elements() != sum(sizes):
            raise ShapeMismatchError(
                f"Got a vector of {vector.shape.num_elements()} elements for {sum(sizes)}; "
                "give one of the size that `flatten` makes."
            )
        parts = tf.split(vector, sizes) if sizes else []
        return Gradients(
            [(key, tf.cast(tf.reshape(part, key.shape), key.dtype)) for key, part in zip(self, parts, strict=True)]
        )

    @staticmethod
    def mean(gradients: Sequence[Gradients], weights: Sequence[float] | None = None) -> Gradients:
        """Return the mean, weighted for example by the sizes of the batches.

        >>> v = tf.Variable(0.0)
        >>> small, large = Gradients([(v, tf.constant(1.0))]), Gradients([(v, tf.constant(4.0))])
        >>> float(Gradients.mean([small, large], weights=[1, 2])[v])
        3.0
        """
        weights = [1.0] * len(gradients) if weights is None else list(weights)
        if len(weights) != len(gradients) or not gradients:
            raise ShapeMismatchError(f"Got {len(weights)} weights for {len(gradients)} gradients; give one for each.")
        shares = [weight / sum(weights) for weight in weights]
        return sum((share * grads for share, grads in zip(shares, gradients, strict=True)), start=Gradients([]))

    # ------------------------------------------------------------------ what is done with gradients

    def clip(
        self,
        *,
        norm: float | None = None,
        global_norm: float | None = None,
        value: float | None = None,
        adaptive: float | None = None,
    ) -> Gradients:
        """Bound the gradients; give one of the bounds.

        Args:
          norm: For the norm of each gradient.
          global_norm: For the norm of the whole vector.
          value: For the size of each element.
          adaptive: For the norm of each unit as a share of the norm of its weights (AGC).

        >>> v = tf.Variable([0.0, 0.0])
        >>> float(Gradients([(v, tf.constant([3.0, 4.0]))]).clip(global_norm=2.5).norm())
        2.5
        """
        given = {"norm": norm, "global_norm": global_norm, "value": value, "adaptive": adaptive}
        bounds = {name: bound for name, bound in given.items() if bound is not None}
        if len(bounds) != 1:
            raise TypeError(
                f"clip takes one of {', '.join(f'{name}=' for name in given)}, got {list(bounds) or 'none'}."
            )
        ((kind, bound),) = bounds.items()
        if bound < 0:
            raise ValueError(f"clip takes a bound that is not negative, got {kind}={bound}.")
        if kind == "global_norm":
            return self * clipping.factor(self.norm(), bound)
        if kind == "adaptive":
            return Gradients([(key, clipping.adaptive(grad, key, bound)) for grad, key in self.pairs()])
        return self.map(lambda grad: clipping.BY_KIND[kind](grad, bound))

    def normalized(self) -> Gradients:
        """Return the vector of norm one in the same direction; the zero vector stays."""
        return self * tf.math.divide_no_nan(1.0, self.norm())

    def with_noise(self, stddev: float, seed: int | None = None) -> Gradients:
        """Add normal noise to every element; the result is dense."""
        return Gradients([(key, clipping.noisy(self[key], stddev, seed, n)) for n, key in enumerate(self)])

    def apply(self, optimizer: Any) -> None:
        """Let an optimizer make a step along these gradients, building it for them if it is not built."""
        apply(optimizer, self.pairs())

    def __repr__(self) -> str:
        return render(self.pairs())


def _total(terms: list[Tensor]) -> Tensor:
    if not terms:
        return tf.constant(0.0)
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.size)
    return tf.add_n([tf.cast(term, widest) for term in terms])
