"""Computation → function of TensorFlow: queries of a structure that comes again are compiled."""

from retrotape.compile._cache import cache, compiled

__all__ = ["cache", "compiled"]
