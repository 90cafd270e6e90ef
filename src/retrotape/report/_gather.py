"""Scene → report."""

from __future__ import annotations

from retrotape._version import __version__
from retrotape.diagnose.losses import Chosen
from retrotape.diagnose.memory import measure
from retrotape.diagnose.summary import sizes_of
from retrotape.diagnose.tensors import value_of
from retrotape.diagnose.why import title_of
from retrotape.errors import RetrotapeError
from retrotape.ir import slice_to
from retrotape.report._data import Held, Loss, Op
from retrotape.report._graph import draw
from retrotape.report._histories import described_histories
from retrotape.report._losses import ADVICE
from retrotape.report._report import Report
from retrotape.report._scene import Scene
from retrotape.report._search import find_problems
from retrotape.tf import core

_FORWARD = ("NaN and infinities", "dead units")
_BACKWARD = ("missing gradients", "zero gradients", "vanishing and exploding gradients")


def make_report(scene: Scene, title: str) -> Report:
    """Return the report of a scene."""
    own, program = scene.own, scene.program
    held, sizes = measure(own), sizes_of(own)
    used = slice_to(program, scene.targets) if scene.targets else range(len(program.eqns))
    conflicts = ("conflicts between losses",) if len(scene.losses) > 1 else ()
    return Report(
        title=title,
        versions={"retrotape": __version__, "TensorFlow": core.version},
        findings=find_problems(scene),
        checks=(*_FORWARD, *_BACKWARD, *conflicts) if scene.rows else _FORWARD,
        losses=tuple(_loss(scene, one) for one in scene.losses),
        advice="" if scene.losses else ADVICE,
        places=scene.described,
        flow=scene.flow,
        weights=tuple(scene.weights),
        cosines=scene.cosines,
        drawings=draw(program, scene.places, scene.described, used),
        lines=tuple(scene.lines.values()),
        ops=_ops(scene),
        memory=tuple(Held(scene.line_of(line.frame), line.bytes, line.tensors) for line in held.lines),
        kept={"values": len(sizes), "bytes": held.bytes, "variables": held.variables, "offloaded": held.away},
        histories=described_histories(scene.trace, scene.seen, scene.line_at),
        frozen=tuple(own.path_of(one) for one in own.variables.values() if own.is_frozen(one)),
        notes=tuple(scene.notes),
    )


def _ops(scene: Scene) -> tuple[Op, ...]:
    types, found = scene.program.types, list[Op]()
    numbers = {frame: number for number, frame in enumerate(scene.lines)}
    lines = [numbers[frame] for frame in scene.trace.frames]
    for index, (eqn, place) in enumerate(zip(scene.program.eqns, scene.places.of, strict=True)):
        output = str(types[eqn.outputs[0]]) if eqn.outputs else ""
        kept = sum(scene.sizes.get(var, 0) for var in eqn.outputs)
        found.append(Op(title_of(scene.trace, index), output, place, lines[eqn.frame], kept))
    return tuple(found)


def _loss(scene: Scene, chosen: Chosen) -> Loss:
    given = [var for one in scene.losses for var in one.vars]
    var = dict(zip(given, scene.targets, strict=True))[chosen.vars[0]]
    kind, maker = scene.program.types[var], scene.program.producers[var]
    is_number = kind.shape == () and len(chosen.vars) == 1 and var in scene.seen.stats
    line = scene.line_at(maker) if maker >= 0 else None
    return Loss(chosen.name, chosen.how, str(kind), _value(scene, var) if is_number else None, line)


def _value(scene: Scene, var: int) -> float | None:
    try:
        value = value_of(scene.trace, var)
    except RetrotapeError:  # it is lost
        return None
    return None if value.dtype.is_complex else float(value)
