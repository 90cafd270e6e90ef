"""The values that TorchJD, and solvers with many digits, have for some matrices: `aggregators.json` says how."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt

EPS = float(np.finfo(np.float64).eps)


@cache
def stored() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("aggregators.json").read_text())


MATRICES = list(stored()["matrices"])


class Case(NamedTuple):
    """A matrix, and what a method makes of it."""

    name: str
    matrix: np.ndarray
    result: dict[str, Any]

    @property
    def gramian(self) -> tf.Tensor:
        return tf.constant(self.matrix @ self.matrix.T)

    @property
    def vector(self) -> np.ndarray:
        """The combined gradient; not stored for the largest matrix, where weights are."""
        return np.array(self.result["vector"] if "vector" in self.result else self.result["weights"] @ self.matrix)


def cases(method: str, leave_out: Sequence[str] = ()) -> list[Case]:
    """Return what is stored for a method, without matrices for which it has no answer."""
    found = []
    for name, one in stored()["matrices"].items():
        result = one["results"].get(method) or one["exact"].get(method)
        if result is not None and "error" not in result and name not in leave_out:
            found.append(Case(name, np.array(one["matrix"]), result))
    assert len(found) > 3, method
    return found


def preference(count: int) -> list[float]:
    """Return the weights of methods that have "pref" in their name."""
    return np.linspace(0.5, 1.5, count).tolist()


def problem_of(case: Case, **more: Any) -> rt.aggregate.Problem:
    return rt.aggregate.Problem(case.gramian, EPS, **more)


def assert_same(weights: Any, case: Case, relative: float = 1e-9) -> None:
    """Check the combined gradient: weights are not unique where gradients depend on each other."""
    assert_vector(np.asarray(weights) @ case.matrix, case, relative, 1e-15 * np.abs(weights).max())


def assert_vector(found: np.ndarray, case: Case, relative: float = 1e-9, noise: float = 1e-15) -> None:
    wanted, size = case.vector, np.abs(case.matrix).max()
    bound = relative * np.abs(wanted).max() + 10 * len(case.matrix) * noise * size
    assert np.abs(found - wanted).max() <= bound, (case.name, found, wanted)
