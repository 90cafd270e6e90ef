"""Gradients as vectors: keyed by source, with support for None and for sparse gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from retrotape._types import Gradient, Tensor
from retrotape.errors import ShapeMismatchError
from retrotape.grads import _clip as clipping
from retrotape.grads import _sparse as sparse
from retrotape.grads._apply import apply
from retrotape.grads._keyed import Keyed
from retrotape.grads._metrics import metrics
from retrotape.grads._table import name_of, norm_of
from retrotape.tf.core import as_is, tf

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Gradients(Keyed):
    """The gradient with respect to several variables or tensors, as one vector.

    It is immutable; every operation returns a new one. A key without gradient counts as zeros, and `missing` and
    `why` still say that there was none, and for what reason. Sparse gradients stay sparse where possible. Printed, in a
    terminal with rich or in a notebook, it is a table of norms.

    Args:
      gradients: Pairs of key and gradient; None where there is none.
      reasons: Pairs of key and text: why that key has no gradient. Ignored for a key that has one.

    >>> a, b = tf.Variable([1.0, 2.0], name="a"), tf.Variable(3.0, name="b")
    >>> first = rt.Gradients([(a, tf.constant([3.0, 0.0])), (b, None)])
    >>> second = rt.Gradients([(a, tf.constant([0.0, 2.0])), (b, tf.constant(6.0))])
    >>> float((first + 2.0 * second).norm())
    13.0
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `number * gradients` to us

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Tensor:
        # Neither a `collections.abc.Mapping`, which TensorFlow would flatten, nor a tensor, which it would stack.
        raise TypeError("Gradients are several tensors; use `flatten()` for one.")

    # ------------------------------------------------------------------ a vector

    def map(self, function: Callable[[Gradient], Gradient]) -> Gradients:
        """Apply a function to each gradient that is not None.

        >>> v = tf.Variable(1.0)
        >>> float(rt.Gradients([(v, tf.constant(-2.0))]).map(tf.abs)[v])
        2.0
        """
        return self._like([(key, None if grad is None else function(grad)) for grad, key in self.pairs()])

    def __add__(self, other: Gradients) -> Gradients:
        if not isinstance(other, Gradients):
            return NotImplemented
        return Gradients([*self.items(), *other.items()], [*self.reasons(), *other.reasons()])

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
        is_complex = isinstance(divisor, complex) or getattr(divisor, "dtype", None) in (tf.complex64, tf.complex128)
        return self * (1.0 / sparse.number(divisor, tf.complex128 if is_complex else tf.float64))

    def __matmul__(self, other: Gradients) -> Tensor:
        return self.dot(other) if isinstance(other, Gradients) else NotImplemented

    def dot(self, other: Gradients) -> Tensor:
        """Return the inner product with another vector; `a @ b` is the same.

        >>> v = tf.Variable([0.0, 0.0])
        >>> grads = rt.Gradients([(v, tf.constant([3.0, 4.0]))])
        >>> float(grads.dot(grads)), float(grads @ grads)
        (25.0, 25.0)
        """
        terms = [sparse.dot(self._grads[i], other._grads.get(i)) for i in self._grads]
        return _total([term for term in terms if term is not None])

    def cosine(self, other: Gradients) -> Tensor:
        """Return the cosine of the angle to another vector; zero where one of them is the zero vector.

        >>> v = tf.Variable([0.0, 0.0])
        >>> one, other = rt.Gradients([(v, tf.constant([3.0, 0.0]))]), rt.Gradients([(v, tf.constant([1.0, 1.0]))])
        >>> round(float(one.cosine(other)), 4), float(one.cosine(-one))
        (0.7071, -1.0)
        """
        ours, theirs = self.normalized(), other.normalized()  # before the product, which would overflow
        return tf.clip_by_value(ours.dot(theirs), -1.0, 1.0)

    def norm(self) -> Tensor:
        """Return the Euclidean norm; duplicate rows of a sparse gradient count as their sum.

        >>> v = tf.Variable([0.0, 0.0])
        >>> float(rt.Gradients([(v, tf.constant([3.0, 4.0]))]).norm())
        5.0
        """
        there = [grad for grad in self._grads.values() if grad is not None]
        return sparse.norm([sparse.square(grad) for grad in there], [grad.dtype for grad in there])

    def norms(self) -> list[tuple[str, float]]:
        """Return the name and the norm of each gradient.

        >>> v = tf.Variable([0.0, 0.0], name="v")
        >>> rt.Gradients([(v, tf.constant([3.0, 4.0]))]).norms()
        [('v', 5.0)]
        """
        return [(name_of(key), norm_of(grad)) for key, grad in self.items()]

    def metrics(self, prefix: str = "gradients") -> dict[str, float]:
        """Return the norms as a flat dictionary of Python numbers, for whatever collects metrics.

        The keys are "gradients/dense/kernel/norm" for each gradient, where a second variable of the same name is
        "dense/kernel_2"; "gradients/norm", the norm of the whole; and how many elements are not finite
        ("gradients/nonfinite"), how many gradients are all zero ("gradients/zero"), and how many variables have none
        ("gradients/missing"). A missing gradient has no norm, so it has no key of its own.

        Args:
          prefix: The first part of each key; "" for none.

        Raises:
          TapeUseError: Inside a tf.function, where gradients have no values.

        >>> v, w = tf.Variable([0.0, 0.0], name="dense/kernel"), tf.Variable(0.0, name="unused")
        >>> grads = rt.Gradients([(v, tf.constant([3.0, 4.0])), (w, None)])
        >>> for name, number in grads.metrics().items():
        ...     print(name, number)
        gradients/dense/kernel/norm 5.0
        gradients/norm 5.0
        gradients/nonfinite 0.0
        gradients/zero 0.0
        gradients/missing 1.0
        """
        return metrics(self.pairs(), prefix)

    def sum(self) -> Tensor:
        """Return the sum of all elements.

        >>> v = tf.Variable([0.0, 0.0])
        >>> float(rt.Gradients([(v, tf.constant([3.0, 4.0]))]).sum())
        7.0
        """
        values = [grad.values if sparse.is_sparse(grad) else grad for grad in self._grads.values() if grad is not None]
        return _total([tf.reduce_sum(tf.cast(value, sparse.wide(value.dtype))) for value in values])

    def is_finite(self) -> Any:
        """Return whether no element is infinite or not a number; inside a tf.function, as a tensor.

        >>> v = tf.Variable(0.0)
        >>> rt.Gradients([(v, tf.constant(1.0))]).is_finite(), rt.Gradients([(v, tf.math.log(-1.0))]).is_finite()
        (True, False)
        """
        there = [sparse.is_finite(grad) for grad in self._grads.values() if grad is not None]
        finite = tf.reduce_all(tf.stack(there)) if there else tf.constant(True)
        return bool(finite) if tf.executing_eagerly() else finite

    def is_close(self, other: Gradients, rtol: float = 1e-5, atol: float = 1e-6) -> bool:
        """Return whether two vectors are equal up to rounding; a missing gradient counts as zeros.

        >>> v = tf.Variable(0.0)
        >>> grads = rt.Gradients([(v, tf.constant(1.0))])
        >>> grads.is_close(1.000001 * grads), grads.is_close(1.1 * grads)
        (True, False)
        """
        difference, size = float((self - other).norm()), float(other.norm())
        return difference <= atol + rtol * size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gradients):
            return NotImplemented
        apart = (self - other)._grads.values()
        return all(grad is None or not bool(tf.reduce_any(sparse.values_of(grad) != 0)) for grad in apart)

    __hash__ = None  # type: ignore[assignment]

    def flatten(self) -> Tensor:
        """Return one dense vector over all keys, in their order and in a dtype that holds them all.

        >>> a, b = tf.Variable([0.0, 0.0]), tf.Variable(0.0)
        >>> rt.Gradients([(a, tf.constant([3.0, 4.0])), (b, None)]).flatten().numpy().tolist()
        [3.0, 4.0, 0.0]
        """
        dense = [tf.reshape(tf.convert_to_tensor(self[key]), [-1]) for key in self.keys()]
        dtype = sparse.common(*(value.dtype for value in dense))
        return tf.concat([tf.cast(value, dtype) for value in dense], 0) if dense else tf.zeros([0])

    def unflatten(self, vector: Tensor) -> Gradients:
        """Return the gradients that `flatten` would turn into this vector.

        >>> a, b = tf.Variable([0.0, 0.0]), tf.Variable(0.0)
        >>> grads = rt.Gradients([(a, tf.constant([3.0, 4.0])), (b, None)])
        >>> float(grads.unflatten(tf.constant([1.0, 2.0, 3.0]))[b])
        3.0
        """
        vector = tf.reshape(tf.convert_to_tensor(vector), [-1])
        sizes = [tf.TensorShape(key.shape).num_elements() for key in self.keys()]
        if vector.shape.num_elements() != sum(sizes):
            raise ShapeMismatchError(
                f"Got a vector of {vector.shape.num_elements()} elements for {sum(sizes)}; "
                "give one of the size that `flatten` makes."
            )
        parts = tf.split(vector, sizes) if sizes else []
        shaped = [(key, tf.reshape(part, key.shape)) for key, part in zip(self.keys(), parts, strict=True)]
        return Gradients([(key, sparse.cast(part, key.dtype)) for key, part in shaped])

    @staticmethod
    def mean(gradients: Sequence[Gradients], weights: Sequence[float] | None = None) -> Gradients:
        """Return the mean, weighted for example by the sizes of the batches.

        >>> v = tf.Variable(0.0)
        >>> small, large = rt.Gradients([(v, tf.constant(1.0))]), rt.Gradients([(v, tf.constant(4.0))])
        >>> float(rt.Gradients.mean([small, large], weights=[1, 2])[v])
        3.0
        """
        weights = [1.0] * len(gradients) if weights is None else list(weights)
        if not gradients:
            raise ShapeMismatchError("Got no gradients to take the mean of; give one or more.")
        if len(weights) != len(gradients):
            raise ShapeMismatchError(f"Got {len(weights)} weights for {len(gradients)} gradients; give one for each.")
        if all(isinstance(weight, (int, float)) for weight in weights) and sum(weights) == 0:
            raise ValueError(f"Got the weights {weights}, which add up to zero; give some that do not.")
        total = sum(weights)
        shares = [weight / total for weight in weights]
        return sum((share * grads for share, grads in zip(shares, gradients, strict=True)), start=Gradients([]))

    # ------------------------------------------------------------------ clipping, noise, optimizers

    @as_is
    def clip(
        self,
        global_norm: float | None = None,
        *,
        norm: float | None = None,
        value: float | None = None,
        adaptive: float | None = None,
    ) -> Gradients:
        """Bound the gradients; give one of the bounds.

        Args:
          global_norm: For the norm of the whole vector; `clip(1.0)` is `clip(global_norm=1.0)`.
          norm: For the norm of each gradient.
          value: For the size of each element.
          adaptive: For the norm of each unit as a share of the norm of its weights (AGC).

        The gradient of a scaled loss is clipped without unscaling it: with a `LossScaleOptimizer` give the bound to the
        inner optimizer (`global_clipnorm=`), which sees the gradient unscaled.

        >>> v = tf.Variable([0.0, 0.0])
        >>> float(rt.Gradients([(v, tf.constant([3.0, 4.0]))]).clip(global_norm=2.5).norm())
        2.5
        """
        given = {"norm": norm, "global_norm": global_norm, "value": value, "adaptive": adaptive}
        bounds = {name: bound for name, bound in given.items() if bound is not None}
        if len(bounds) != 1:
            raise TypeError(
                f"clip takes one of {', '.join(f'{name}=' for name in given)}, got {list(bounds) or 'none'}."
            )
        ((kind, bound),) = bounds.items()
        if not isinstance(bound, tf.Tensor) and not bound >= 0:
            raise ValueError(f"clip takes a bound that is not negative, got {kind}={bound}.")
        if kind == "global_norm":
            return self * clipping.factor(self.norm(), bound)
        if kind == "adaptive":
            return self._like([(key, clipping.adaptive(grad, key, bound)) for grad, key in self.pairs()])
        return self.map(lambda grad: clipping.BY_KIND[kind](grad, bound))

    def normalized(self) -> Gradients:
        """Return the vector of norm one in the same direction; the zero vector stays.

        >>> v = tf.Variable([0.0, 0.0])
        >>> rt.Gradients([(v, tf.constant([0.0, 4.0]))]).normalized()[v].numpy().tolist()
        [0.0, 1.0]
        """
        norm = self.norm()
        return self * tf.math.divide_no_nan(tf.ones_like(norm), norm)

    def with_noise(self, stddev: float, seed: int | None = None) -> Gradients:
        """Add normal noise to every element, reproducible for a given seed; the result is dense.

        >>> v = tf.Variable([0.0, 0.0])
        >>> grads = rt.Gradients([(v, None)])
        >>> grads.with_noise(0.1, seed=1) == grads.with_noise(0.1, seed=1) != grads
        True
        """
        return Gradients([(key, clipping.noisy(self[key], stddev, seed, n)) for n, key in enumerate(self.keys())])

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Return the norm of each gradient as a figure of Matplotlib; a missing one is marked as such.

        Args:
          path: A file to write it to, such as "norms.png".

        Raises:
          MissingPackageError: If Matplotlib is not installed: `pip install retrotape[plot]`.

        >>> v = tf.Variable([0.0, 0.0], name="v")
        >>> figure = rt.Gradients([(v, tf.constant([3.0, 4.0]))]).plot()
        >>> [float(bar.get_width()) for bar in figure.axes[0].patches]
        [5.0]
        """
        from retrotape.grads.plot import plot_norms  # imported late: most programs plot nothing

        return plot_norms([(name_of(key), None if grad is None else norm_of(grad)) for grad, key in self.pairs()], path)

    def apply(self, optimizer: Any) -> None:
        """Apply these gradients with an optimizer, which is built for their variables if it is not built yet.

        A frozen variable is changed only if it was named as a source: a Keras optimizer applies whatever it is given.
        A variable without gradient is left unchanged, and a `MissingGradientWarning` names it, the op that blocks the
        gradient, and its line; inside a tf.function, at trace time.

        Raises:
          NothingToApplyError: If no key has a gradient.
          UnknownVariableError: If the optimizer was built for other variables.

        >>> v = tf.Variable(1.0)
        >>> rt.Gradients([(v, tf.constant(2.0))]).apply(tf.keras.optimizers.SGD(0.25))
        >>> float(v)
        0.5
        """
        apply(optimizer, self.pairs(), self._reason)


def _total(terms: list[Tensor]) -> Tensor:
    if not terms:
        return tf.constant(0.0)
    dtype = sparse.common(*(term.dtype for term in terms))
    return tf.add_n([tf.cast(term, dtype) for term in terms])
