"""Queries over many tapes or many inputs, in one process or many. `rt.farm` is the public part."""
