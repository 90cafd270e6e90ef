"""A recorded step → functions that play it back, with the checks that say when they may."""

from retrotape.playback._loop import run_many
from retrotape.playback._step import Step
from retrotape.playback._tree import Options

__all__ = ["Options", "Step", "run_many"]
