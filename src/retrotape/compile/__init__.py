"""Computation → function of TensorFlow: queries of a structure that comes again are compiled."""

from retrotape.compile._inside import is_inside, run_inside
from retrotape.compile._parts import differentiate_in_parts
from retrotape.compile._queries import compiled
from retrotape.compile._rows import compiled_rows
from retrotape.compile._structures import cache

__all__ = ["cache", "compiled", "compiled_rows", "differentiate_in_parts", "is_inside", "run_inside"]
