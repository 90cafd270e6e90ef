"""The gradients of several losses: a sequence of vectors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._columns import Column, block_of, exact_gramian
from retrotape.aggregate._conflicts import Conflicts
from retrotape.aggregate._functions import run
from retrotape.aggregate._replicas import replicas
from retrotape.aggregate._shared import split
from retrotape.errors import NonfiniteRowError, ShapeMismatchError, TapeUseError
from retrotape.grads import Gradients, aligned, identities_of, name_of
from retrotape.tf.core import as_is, tf

if TYPE_CHECKING:
    from retrotape.aggregate._base import Aggregator
    from retrotape.aggregate._combined import Combined


UNKNOWN = "unknown"


class Rows(Sequence[Gradients]):
    """The gradients of several losses, one row for each: a sequence of `Gradients`, with names.

    `rows[0]` is the first one, and `rows["depth"]` that of the loss with this name, if the losses were a dictionary.

    Args:
      gradients: The gradients of each loss, as a sequence or by name. They may have different keys: what is absent
        counts as missing.
      names: The names of the losses; their positions by default.
      losses: The values of the losses, for methods that need them; or a function that returns them.
      mixed_by: The name of a variable by which the losses of examples depend on other examples, as by a
        BatchNormalization; None if there is none, "unknown" if nobody has checked. `DPSGD` takes only None.

    >>> w = tf.Variable([1.0, 2.0])
    >>> with rt.Tape() as tape:
    ...     losses = {"near": tf.reduce_sum(w ** 2), "far": -w[0]}
    >>> rows = tape.backward_each(losses)
    >>> rows.names, rows["far"][w].numpy().tolist()
    (('near', 'far'), [-1.0, 0.0])
    >>> rows.cosines().numpy().round(3).tolist()
    [[1.0, -0.447], [-0.447, 1.0]]
    """

    def __init__(
        self,
        gradients: Sequence[Gradients] | Mapping[Hashable, Gradients],
        names: Sequence[Hashable] | None = None,
        losses: Sequence[Any] | Tensor | Callable[[], Any] | None = None,
        mixed_by: str | None = UNKNOWN,
    ) -> None:
        if isinstance(gradients, Mapping):
            if names is not None:
                raise TypeError("Rows takes names from the mapping; got names= as well. Give one of them.")
            names, gradients = list(gradients), list(gradients.values())
        given = list(gradients)
        for row in given:
            if not isinstance(row, Gradients):
                raise TypeError(
                    f"Rows takes Gradients, got {type(row).__name__}: `rt.Rows([tape.backward(one), "
                    "tape.backward(two)])`."
                )
        self._rows: list[Gradients] | None = given
        self._columns: list[Column] | None = None
        self._count = len(given)
        self.mixed_by = mixed_by
        self._name(names, losses)

    def _name(self, names: Sequence[Hashable] | None, losses: Any) -> None:
        self._has_positions = names is None  # for names
        self.names: tuple[Hashable, ...] = tuple(range(self._count)) if names is None else tuple(names)
        if len(self.names) != self._count or len(set(self.names)) != self._count:
            raise ShapeMismatchError(
                f"Got the names {self.names} for {self._count} losses; give each a name of its own."
            )
        if losses is not None and not callable(losses) and _length(losses) != self._count:
            raise ShapeMismatchError(
                f"Got {_length(losses)} values of losses for {self._count} losses; give one for each."
            )
        self._losses = losses

    @property
    def losses(self) -> Sequence[Any] | Tensor | None:
        """The values of the losses; None if they are not known."""
        if callable(self._losses):
            self._losses = self._losses()
        return self._losses

    @classmethod
    def from_stacked(
        cls,
        variables: Sequence[Any],
        stacked: Sequence[Tensor],
        names: Sequence[Hashable] | None = None,
        losses: Any = None,
        mixed_by: str | None = UNKNOWN,
    ) -> Rows:
        """Return the rows of gradients that are stacked, such as those of each example.

        Args:
          variables: The variables.
          stacked: For each variable, the gradients of all losses along the first dimension: what `tape.per_example`
            returns.
          names: As for the class.
          losses: As for the class.
          mixed_by: As for the class.

        >>> w = tf.Variable([1.0, 1.0])
        >>> with rt.Tape() as tape:
        ...     losses = tf.reduce_sum(tf.constant([[1.0, 2.0], [3.0, 4.0]]) * w, 1)
        >>> rows = rt.Rows.from_stacked([w], tape.per_example(losses, [w]))
        >>> rows.gramian().numpy().tolist()
        [[5.0, 11.0], [11.0, 25.0]]
        """
        if len(variables) != len(stacked) or not stacked:
            raise ShapeMismatchError(
                f"Got {len(variables)} variables and {len(stacked)} tensors; give one tensor for each variable."
            )
        columns = []
        for key, grads in zip(variables, stacked, strict=True):
            grads = None if grads is None else tf.convert_to_tensor(grads)
            if grads is not None and tuple(grads.shape[1:]) != tuple(key.shape):
                raise ShapeMismatchError(
                    f"Got gradients of shape {tuple(grads.shape)} for {name_of(key)} of shape {tuple(key.shape)}; "
                    "expected one dimension more, in front: what `tape.per_example` returns."
                )
            columns.append(Column(key, stacked=grads))
        counts = {int(column.stacked.shape[0]) for column in columns if column.stacked is not None}
        if len(counts) != 1:
            raise ShapeMismatchError(
                f"Got stacks of {sorted(counts)} gradients; expected as many for each variable: the number of losses."
            )
        rows = cls([])
        (rows._count,) = counts
        rows._rows, rows._columns = (
            None,
            [
                Column(key, (None,) * rows._count) if grads is None else Column(key, stacked=grads)
                for key, _, grads in columns
            ],
        )
        rows._name(names, losses)
        rows.mixed_by = mixed_by
        return rows

    # ------------------------------------------------------------------ a sequence

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int | str) -> Gradients: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: Any) -> Any:
        """Return the gradients of a loss by name or position; for a slice, of several."""
        if isinstance(index, slice):
            losses = None if self.losses is None else self.losses[index]
            names = None if self._has_positions else self.names[index]
            return Rows(self._vectors()[index], names, losses, self.mixed_by)
        if not self._has_positions and index in self.names:
            return self._vectors()[self.names.index(index)]
        if isinstance(index, (int, np.integer)):
            return self._vectors()[index]
        raise KeyError(f"No loss is called {index!r}; there are {', '.join(map(repr, self.names))}.")

    def __iter__(self) -> Iterator[Gradients]:
        return iter(self._vectors())

    def __reversed__(self) -> Iterator[Gradients]:
        return reversed(self._vectors())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Rows, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> list[tuple[Hashable, Gradients]]:
        """Return pairs of name and gradients.

        >>> w = tf.Variable(3.0)
        >>> with rt.Tape() as tape:
        ...     losses = {"square": w ** 2, "line": 5.0 * w}
        >>> [(name, float(grads[w])) for name, grads in tape.backward_each(losses).items()]
        [('square', 6.0), ('line', 5.0)]
        """
        return list(zip(self.names, self._vectors(), strict=True))

    def _vectors(self) -> list[Gradients]:
        if self._rows is None:
            columns = self._columns or []
            keys = [column.key for column in columns]
            identities = identities_of(keys)
            self._rows = [
                Gradients.of_query(keys, [column.row(number) for column in columns], {}, identities)
                for number in range(self._count)
            ]
        return self._rows

    def columns(self) -> list[Column]:
        """Return the same numbers by variable."""
        if self._columns is None:
            rows = self._vectors()
            keys, grads = aligned(rows)
            self._columns = [Column(key, column) for key, column in zip(keys, zip(*grads, strict=True), strict=True)]
        return self._columns

    # ------------------------------------------------------------------ inner products

    @as_is
    def gramian(self, shared: Iterable[Any] | None = None) -> Tensor:
        """Return the inner products of all pairs of rows, as a matrix of float64.

        Args:
          shared: The variables to consider; by default those that more than one loss has a gradient for.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     losses = [3.0 * w[0], w[0] - w[1]]
        >>> tape.backward_each(losses).gramian().numpy().tolist()
        [[9.0, 3.0], [3.0, 2.0]]
        """
        count = self._count
        if replicas() > 1:
            raise TapeUseError(
                "In one of several replicas, these are inner products of its share of the gradients, not of the whole. "
                "Call a method, `rt.aggregate.UPGrad()(rows)`, which sums the rows over replicas first."
            )

        def compute(columns: list[Column], _: list[Tensor]) -> Tensor:
            return exact_gramian(map(block_of, columns), count)

        return run(compute, ("exact gramian", count), split(self.columns(), count, shared).shared)

    @as_is
    def cosines(self, shared: Iterable[Any] | None = None) -> Tensor:
        """Return the cosines of the angles between all pairs of rows; zero for a row of zeros.

        Args:
          shared: As for `gramian`.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     losses = [3.0 * w[0], w[0] - w[1]]
        >>> tape.backward_each(losses).cosines().numpy().round(3).tolist()
        [[1.0, 0.707], [0.707, 1.0]]
        """
        gramian = self.gramian(shared)
        norms = tf.sqrt(tf.linalg.diag_part(gramian))
        cosines = tf.math.divide_no_nan(gramian, norms[:, None] * norms[None, :])
        return tf.clip_by_value(cosines, -1.0, 1.0)

    def conflicts(self, shared: Iterable[Any] | None = None) -> Conflicts:
        """Return which losses pull in opposite directions; it prints as a table, and `plot()` draws it.

        Args:
          shared: As for `gramian`.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     losses = {"near": 3.0 * w[0], "far": w[1] - w[0]}
        >>> tape.backward_each(losses).conflicts()
        loss  norm    near    far
        near  3          ·  -0.71
        far   1.414  -0.71      ·
        1 of 1 pairs conflict; the worst is near and far, with a cosine of -0.71
        """
        gramian = self.gramian(shared)
        if not hasattr(gramian, "numpy"):
            raise TapeUseError("Conflicts are shown in eager code; inside a tf.function, use `rows.cosines()`.")
        return Conflicts(self.names, gramian.numpy())

    def noise_scale(self) -> Tensor:
        """Return the gradient noise scale: the batch size above which larger batches bring little.

        The rows are those of single examples, or of equal batches whose size is then the unit. It is the trace of their
        covariance over the squared norm of their mean, both without bias; infinite where the mean is lost in noise.
        McCandlish et al., An Empirical Model of Large-Batch Training, 2018 (arXiv:1812.06162).

        >>> w = tf.Variable(1.0)
        >>> with rt.Tape() as tape:
        ...     losses = w * tf.constant([1.0, 2.0, 3.0])
        >>> round(float(tape.backward_each(losses).noise_scale()), 4)
        0.2727
        """
        count = self._count
        if count < 2:
            raise ShapeMismatchError(f"Got {count} rows; the noise scale needs two at least.")
        gramian = self.gramian([column.key for column in self.columns()])
        if tf.executing_eagerly():
            fine = tf.math.is_finite(tf.linalg.diag_part(gramian)).numpy()
            if not fine.all():
                raise NonfiniteRowError([name for name, is_fine in zip(self.names, fine, strict=True) if not is_fine])
        total, own = tf.reduce_sum(gramian), tf.linalg.trace(gramian)
        spread = (own - total / count) / (count - 1)
        square = (total - own) / (count * (count - 1))
        return tf.where(square > 0, spread / square, tf.constant(np.inf, tf.float64))

    def combine(self, method: str | Aggregator, **options: Any) -> Combined:
        """Combine the rows: `rows.combine("upgrad")` is `rt.aggregate.UPGrad()(rows)`.

        Args:
          method: The name of a method in `rt.aggregate`, in lower case, or a method.
          **options: The parameters of a method that is given by name; `shared` and `nonfinite` as for calling it.

        >>> w = tf.Variable([1.0, 1.0])
        >>> with rt.Tape() as tape:
        ...     losses = {"first": w[0], "second": w[1] - w[0]}
        >>> tape.backward_each(losses).combine("upgrad")[w].numpy().tolist()
        [0.25, 0.75]
        """
        from retrotape.aggregate import named  # late: methods import this file

        how = {name: options.pop(name) for name in ("shared", "nonfinite") if name in options}
        if not isinstance(method, str) and options:
            raise TypeError(
                f"Got {', '.join(options)} for {method}; give the parameters where you make the method, or its name."
            )
        return (named(method, **options) if isinstance(method, str) else method)(self, **how)

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.names[:12])) + (", ..." if self._count > 12 else "")
        return f"<Rows of {self._count} losses ({names}) with respect to {len(self.columns())} variables>"

    def _repr_html_(self) -> str:
        text = f"<code>{escape(repr(self))}</code>"
        return text if not self._is_eager() else f"{text}{self.conflicts()._repr_html_()}"

    def _is_eager(self) -> bool:
        return all(hasattr(tensor, "numpy") for column in self.columns() for tensor in column.tensors())


def _length(losses: Any) -> int:
    return losses.shape[0] if isinstance(losses, tf.Tensor) else len(losses)
