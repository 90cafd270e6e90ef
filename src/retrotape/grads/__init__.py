"""Gradients as a vector space."""

from retrotape.grads._gradients import Gradients
from retrotape.grads._keyed import identities_of
from retrotape.grads._named import NamedSource
from retrotape.grads._table import name_of

__all__ = ["Gradients", "NamedSource", "identities_of", "name_of"]
