"""Callbacks for `fit` of Keras: `rt.callbacks`."""

from retrotape.callbacks.gradient_log import GradientLog

__all__ = ["GradientLog"]
