"""Random, degenerate and badly scaled rows, for solvers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

KINDS = ("random", "conflicting", "dependent", "repeated", "with zeros", "nearly opposite", "scaled")


def rows_of(kind: str, count: int, draw: np.random.Generator) -> np.ndarray:
    """Return some rows."""
    matrix = draw.normal(size=(count, int(draw.integers(2, 2 * count + 2))))
    if kind == "conflicting":
        matrix = np.where(np.arange(count)[:, None] % 2, -1.0, 1.0) * (draw.normal(size=matrix.shape[1]) + 0.5 * matrix)
    elif kind == "dependent":
        matrix = draw.normal(size=(count, 2)) @ draw.normal(size=(2, matrix.shape[1]))
    elif kind == "repeated":
        matrix = matrix[draw.integers(0, count, count)] * draw.choice([-1.0, 1.0, 2.0], (count, 1))
    elif kind == "with zeros":
        matrix[draw.random(count) < 0.4] = 0.0
    elif kind == "nearly opposite":
        matrix = draw.choice([-1.0, 1.0], (count, 1)) * (matrix[:1] + 10.0 ** draw.uniform(-9, -2) * matrix)
    elif kind == "scaled":
        matrix *= 10.0 ** draw.uniform(-6, 6, (count, 1))
    return matrix


def many(seed: int, number: int, sizes: tuple[int, ...] = (2, 3, 4, 6, 9)) -> Iterator[tuple[str, np.ndarray]]:
    """Return rows of all kinds, some in single precision."""
    draw = np.random.default_rng(seed)
    for place in range(number):
        kind = KINDS[place % len(KINDS)]
        matrix = rows_of(kind, int(draw.choice(sizes)), draw)
        yield kind, matrix.astype(np.float32) if place % 3 == 0 else matrix
