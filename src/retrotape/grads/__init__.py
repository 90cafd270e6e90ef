"""Gradients as a vector space."""

from retrotape.grads._gradients import Gradients

__all__ = ["Gradients"]
