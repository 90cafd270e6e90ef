"""The search for problems in a scene."""

from __future__ import annotations

from typing import Any

from retrotape.errors import RetrotapeError
from retrotape.report import _findings as findings
from retrotape.report._data import Finding
from retrotape.report._scene import Scene

_EXPLAINED = 4  # of the missing and of the zero gradients: each takes a walk


def find_problems(scene: Scene) -> tuple[Finding, ...]:
    """Return what is wrong, errors first."""
    found = [*_nonfinite(scene), *_missing(scene), *_zero(scene)]
    if not any(one.kind == "nan" for one in found):
        found += _too_large_and_too_small(scene)
    found += _dead(scene)
    found += [findings.conflict(one) for one in scene.cosines if one.value < findings.CONFLICT and one.is_summed]
    return tuple(sorted(found, key=lambda one: one.severity != "error"))


def _too_large_and_too_small(scene: Scene) -> list[Finding]:
    """Compare each layer with those that follow it on its paths to the losses: other heads have other scales."""
    weights, places = findings.norms_of(scene.weights), scene.described
    calls = {
        one.place: one.backward.norm
        for one in scene.flow
        if places[one.place].is_layer and one.backward is not None and not one.backward.nonfinite
    }
    return [
        *findings.exploding(calls, scene.later(calls, last=True), places),
        *findings.vanishing(weights, scene.later(weights), places),
        *findings.vanishing_in_time(places, scene.flow, scene.gated),
    ]


def _nonfinite(scene: Scene) -> list[Finding]:
    seen = [*scene.seen.stats.values(), *scene.back.stats.values(), *(one.gradient for one in scene.weights)]
    if scene.wanted and not any(map(findings.is_nonfinite, seen)):
        return []  # without a loss, what nothing uses further may be what matters: the whole tape is searched
    try:
        found = scene.tape.first_nonfinite(list(scene.wanted)) if scene.wanted else None
        found = found if found is not None else scene.tape.first_nonfinite()
    except RetrotapeError as error:
        scene.notes.append(f"Something is not finite, and the op that made it was not found: {error}")
        return []
    return [] if found is None else [findings.of_nonfinite(found, scene.line_of)]


def _missing(scene: Scene) -> list[Finding]:
    reasons: dict[str, list[str]] = {}
    keys: dict[str, Any] = {}
    for key, one in zip(scene.rows[0].keys() if scene.rows else (), scene.weights, strict=True):
        if one.state == "none":
            reasons.setdefault(one.reason, []).append(one.name)
            keys.setdefault(one.reason, key)
    found = []
    for number, (reason, names) in enumerate(reasons.items()):
        explained = _explained(scene, keys[reason]) if number < _EXPLAINED else None
        found.append(findings.of_missing(names, reason, explained, scene.line_of))
    return found


def _zero(scene: Scene) -> list[Finding]:
    pairs = zip(scene.rows[0].keys() if scene.rows else (), scene.weights, strict=True)
    zero = [(key, one) for key, one in pairs if one.state == "zero"]
    groups: dict[Any, tuple[list[str], Any]] = {}
    for number, (key, one) in enumerate(zero):
        explained = _explained(scene, key) if number < _EXPLAINED else None
        cut = None if explained is None or explained.cut is None else (explained.cut, explained.detail)
        groups.setdefault(cut if number < _EXPLAINED else "rest", ([], explained))[0].append(one.name)
    return [findings.of_zero(names, explained, scene.line_of) for names, explained in groups.values()]


def _explained(scene: Scene, key: Any) -> Any:
    try:
        return scene.tape.why(list(scene.wanted), key)
    except RetrotapeError:
        return None  # the short reason remains


def _dead(scene: Scene) -> list[Finding]:
    most: dict[int, Any] = {}  # one for each place and line
    for one in scene.seen.dead:
        if one.dead >= findings.DEAD * one.units:
            known = most.setdefault(scene.places.of[one.eqn], one)
            most[scene.places.of[one.eqn]] = max(known, one, key=lambda each: each.dead / each.units)
    if not most:
        return []
    found = [(scene.described[place].name, place, one.units, one.dead) for place, one in most.items()]
    return [findings.dead(found, scene.line_at(next(iter(most.values())).eqn))]
