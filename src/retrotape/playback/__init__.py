"""A recorded step → functions that play it back, with the checks that say when they may."""

from retrotape.playback._loop import run_many
from retrotape.playback._of_tape import CompiledTape, Playable
from retrotape.playback._step import Step
from retrotape.playback._tree import Options
from retrotape.playback._updates import apply_update

__all__ = ["CompiledTape", "Options", "Playable", "Step", "apply_update", "run_many"]
