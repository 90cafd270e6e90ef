"""Computation → function of TensorFlow: queries of a structure that comes again are compiled."""

from retrotape.compile._cache import cache, compiled
from retrotape.compile._settings import config, settings

__all__ = ["cache", "compiled", "config", "settings"]
