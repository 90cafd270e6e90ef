"""Steps that are played back in changing surroundings: what they give is what eager code gives, or they raise."""

from __future__ import annotations

import re
from typing import Any

import pytest

import retrotape as rt
from helpers.seeds import seeds
from laws.playback_effects import FEATURES, Feature
from laws.playback_programs import VARIATIONS, program, run
from playback.twins import assert_same, plays

TOLERANCE = 1e-6
PARTS = 6


def some_for(feature: Feature) -> list[dict[str, Any]]:
    """Return a part of the variations, another one for the next feature, and those of arguments that this one reads."""
    part, reads = FEATURES.index(feature) % PARTS, set(re.findall(r"\b(?:n|mode)\b", feature.body))
    return [one for place, one in enumerate(VARIATIONS) if place % PARTS == part or reads & one.keys()]


def check(seed: int, feature: Feature | None = None, variations: Any = VARIATIONS, **options: Any) -> Any:
    """Compare a run with that of a twin in eager mode, as far as it went, and return the compiled step.

    Args:
      seed: Decides on the calls.
      feature: What the step does; by default the seed decides on that as well.
      variations: What changes between calls of a step with one feature.
      options: Those of `rt.compile`.
    """
    made: list[Any] = []

    def wrap(step: Any) -> Any:
        made.append(rt.compile(step, **options))
        return made[-1]

    ours, theirs = run(seed, wrap, feature, variations), run(seed, lambda step: step, feature, variations)
    assert len(ours) == len(theirs) or options.get("strict")
    source = program(seed, feature)[0]
    assert feature is None or any(isinstance(found, dict) for _, (_, found, *_) in theirs[:4]), f"it fails:\n{source}"
    for number, ((call, one), (_, other)) in enumerate(zip(ours, theirs, strict=False)):
        assert_same(one, other, TOLERANCE, f"{source}\n\ncall {number}, {call}")
    return made[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_step_with_one_feature(feature: Feature) -> None:
    """Each meets a part of the variations, and each variation many features: all of them are slow."""
    compiled = check(1, feature, some_for(feature), limit=100)
    if feature.plays:
        assert compiled.why_not_compiled() is None
        assert plays(compiled) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_step_with_one_feature_in_every_variation(feature: Feature) -> None:
    compiled = check(1, feature, limit=100)
    if feature.plays:
        assert compiled.why_not_compiled() is None
        assert plays(compiled) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_step_with_one_feature_gives_the_same_or_raises(feature: Feature) -> None:
    check(2, feature, strict=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", seeds(8, 24))
def test_played_back_is_eager(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(600, 700))
def test_played_back_is_eager_if_few_recordings_are_kept(seed: int) -> None:
    check(seed, limit=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(700, 800))
def test_played_back_is_eager_or_raises(seed: int) -> None:
    check(seed, strict=True)
