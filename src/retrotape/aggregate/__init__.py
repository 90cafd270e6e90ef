"""Many gradients → one: `rt.aggregate`."""

from __future__ import annotations

from retrotape.aggregate._base import Aggregator
from retrotape.aggregate._combined import Combined
from retrotape.aggregate._conflicts import Conflict, Conflicts
from retrotape.aggregate._coordinatewise import Coordinatewise
from retrotape.aggregate._named import named
from retrotape.aggregate._rows import Rows
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.aggregate.aligned_mtl import AlignedMTL
from retrotape.aggregate.cagrad import CAGrad
from retrotape.aggregate.config import ConFIG
from retrotape.aggregate.dpsgd import DPSGD
from retrotape.aggregate.dualproj import DualProj
from retrotape.aggregate.dwa import DWA
from retrotape.aggregate.fairgrad import FairGrad
from retrotape.aggregate.graddrop import GradDrop
from retrotape.aggregate.gradnorm import GradNorm
from retrotape.aggregate.gradvac import GradVac
from retrotape.aggregate.imtlg import IMTLG
from retrotape.aggregate.krum import Krum
from retrotape.aggregate.mgda import MGDA
from retrotape.aggregate.moco import MoCo
from retrotape.aggregate.nash_mtl import NashMTL
from retrotape.aggregate.pcgrad import PCGrad
from retrotape.aggregate.random import Random
from retrotape.aggregate.sum import Mean, Sum
from retrotape.aggregate.trimmed_mean import TrimmedMean
from retrotape.aggregate.uncertainty import UncertaintyWeighting
from retrotape.aggregate.upgrad import UPGrad
from retrotape.aggregate.weighted import Constant, Weighted

__all__ = [
    "DPSGD",
    "DWA",
    "IMTLG",
    "MGDA",
    "Aggregator",
    "AlignedMTL",
    "CAGrad",
    "Combined",
    "ConFIG",
    "Conflict",
    "Conflicts",
    "Constant",
    "Coordinatewise",
    "DualProj",
    "FairGrad",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "Krum",
    "Mean",
    "MoCo",
    "NashMTL",
    "PCGrad",
    "Problem",
    "Random",
    "Rows",
    "Solution",
    "Sum",
    "TrimmedMean",
    "UPGrad",
    "UncertaintyWeighting",
    "Weighted",
    "Weighting",
    "named",
]
