"""What TensorBoard reads in a folder of logs: its own reader, not ours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what TensorBoard's dependencies deprecate
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util


class Logs:
    """The contents of a folder, by tag."""

    def __init__(self, folder: str | Path) -> None:
        self._found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        self._found.Reload()
        self.tags = set(self._found.Tags()["tensors"])

    def plugin(self, tag: str) -> str:
        """Return the dashboard that shows a tag."""
        return self._found.SummaryMetadata(tag).plugin_data.plugin_name

    def description(self, tag: str) -> str:
        return self._found.SummaryMetadata(tag).summary_description

    def steps(self, tag: str) -> list[int]:
        return [event.step for event in self._found.Tensors(tag)]

    def values(self, tag: str) -> list[Any]:
        return [tensor_util.make_ndarray(event.tensor_proto) for event in self._found.Tensors(tag)]

    def number(self, tag: str) -> float:
        """Return the last number of a scalar."""
        assert self.plugin(tag) == "scalars"
        return float(self.values(tag)[-1])

    def count(self, tag: str) -> float:
        """Return how many elements the last histogram has."""
        assert self.plugin(tag) == "histograms"
        return float(np.sum(self.values(tag)[-1][:, 2]))

    def range(self, tag: str) -> tuple[float, float]:
        """Return the ends of the last histogram."""
        buckets = self.values(tag)[-1]
        return float(buckets[0, 0]), float(buckets[-1, 1])

    def text(self, tag: str = "findings") -> str:
        """Return the last text."""
        assert self.plugin(tag) == "text"
        return np.ravel(self.values(tag)[-1])[0].decode()

    def nodes(self) -> dict[str, Any]:
        """Return the nodes of the graph, by name."""
        return {node.name: node for node in self._found.Graph().node}
