"""Gradients as a vector space."""

from retrotape.grads import _sparse as sparse
from retrotape.grads._apply import updater
from retrotape.grads._gradients import Gradients
from retrotape.grads._keyed import aligned, identities_of, in_order
from retrotape.grads._metrics import distinct
from retrotape.grads._named import NamedSource
from retrotape.grads._sparse import count_nonfinite, elements
from retrotape.grads._table import name_of

__all__ = [
    "Gradients",
    "NamedSource",
    "aligned",
    "count_nonfinite",
    "distinct",
    "elements",
    "identities_of",
    "in_order",
    "name_of",
    "sparse",
    "updater",
]
