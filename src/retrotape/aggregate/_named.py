"""Methods by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from retrotape.aggregate._base import Aggregator
from retrotape.errors import did_you_mean

# The file of each method.
_FILES = {
    "AlignedMTL": "aligned_mtl",
    "CAGrad": "cagrad",
    "ConFIG": "config",
    "Constant": "weighted",
    "DPSGD": "dpsgd",
    "DWA": "dwa",
    "DualProj": "dualproj",
    "FairGrad": "fairgrad",
    "GradDrop": "graddrop",
    "GradNorm": "gradnorm",
    "GradVac": "gradvac",
    "IMTLG": "imtlg",
    "Krum": "krum",
    "MGDA": "mgda",
    "Mean": "sum",
    "MoCo": "moco",
    "NashMTL": "nash_mtl",
    "PCGrad": "pcgrad",
    "Random": "random",
    "Sum": "sum",
    "TrimmedMean": "trimmed_mean",
    "UPGrad": "upgrad",
    "UncertaintyWeighting": "uncertainty",
    "Weighted": "weighted",
}


def named(name: str, **options: Any) -> Aggregator:
    """Return a method by its name; upper and lower case, and anything but letters, do not matter.

    Args:
      name: The name, as in "upgrad" or "IMTL-G".
      **options: The parameters of the method.

    Raises:
      ValueError: If there is no such method.

    >>> rt.aggregate.named("cagrad", c=0.4)
    CAGrad(c=0.4)
    """
    known = {_letters(one): one for one in _FILES}
    found = known.get(_letters(name))
    if found is None:
        raise ValueError(
            f"No method is called {name!r}.{did_you_mean(name, list(known))} There are {', '.join(sorted(_FILES))}."
        )
    return getattr(import_module(f"retrotape.aggregate.{_FILES[found]}"), found)(**options)


def _letters(name: str) -> str:
    return "".join(filter(str.isalpha, name)).lower()
