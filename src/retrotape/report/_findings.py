"""The problems that a report looks for: each with its limits, a sentence and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

from retrotape.diagnose.nonfinite import Nonfinite
from retrotape.diagnose.why import Explanation
from retrotape.ir import Frame
from retrotape.report._data import NO_PLACE, Cosine, Finding, Flow, Line, Place, Stats, Weight

VANISHED = 1e-5  # of the largest gradient of a layer
EXPLODED = 1e4  # times the gradient at the last layer
DEAD = 0.5  # of the units of an activation
CONFLICT = -0.05  # the cosine of two gradients
_STEPS = 4  # calls of a layer that make a recurrence
_SHOWN = 12  # names
_GATES = "Use a gated cell (LSTM, GRU), an orthogonal recurrent initializer, or shorter sequences."
_OPEN_GATES = (
    "Open the gates at the start (a larger bias of the forget gate; a smaller one of the update gate of a GRU), use "
    "shorter sequences, or let later steps see earlier ones directly, by attention for instance."
)


class Problem(Enum):
    """What is looked for. The value is the severity, and what to do about it."""

    NAN = ("error", "Print `tape.first_nonfinite(loss)`: it names the op that made it.")
    NONE = ("error", "Print `tape.why(loss, variable)`: it explains it in full.")
    ZERO = ("warning", "Print `tape.why(loss, variable)`: it names the op that makes the gradient zero.")
    VANISHING = (
        "warning",
        "Use activations that do not saturate (relu, gelu) with a matching initializer (`he_normal`), add residual "
        "connections or normalization layers, or raise the learning rate of these layers.",
    )
    EXPLODING = (
        "warning",
        "Clip the gradient, `grads.clip(global_norm=1.0)`, lower the learning rate, scale down the initial weights, or "
        "add normalization layers.",
    )
    DEAD = (
        "warning",
        "Lower the learning rate, initialize biases above zero, or use an activation with a slope on both sides: "
        "`leaky_relu` or `gelu`.",
    )
    CONFLICT = (
        "warning",
        "A step along the sum makes one of the losses worse. Weigh the losses, or combine their gradients yourself: "
        "`tape.backward_each(losses)` has one for each.",
    )

    def finding(self, title: str, sentence: str, **more: object) -> Finding:
        """Return a finding of this kind."""
        severity, remedy = self.value
        return Finding(self.name.lower(), severity, title, sentence, **{"remedy": remedy, **more})  # type: ignore[arg-type]


LineOf = Callable[[Frame], Line]


def of_nonfinite(found: Nonfinite, line_of: LineOf) -> Finding:
    """Return the finding about a NaN or an infinity."""
    what = f"the gradient of {found.op}" if found.backward else found.op
    verb = "received" if found.cause.name == "GIVEN" else "produced"
    sentence = f"{what[0].upper()}{what[1:]} {verb} the first value that is not finite. {found.cause.sentence}"
    detail = " ".join([*([found.detail] if found.detail else []), f"Inputs: {'; '.join(found.inputs) or 'none'}."])
    return Problem.NAN.finding(
        "NaN or infinity", sentence, remedy=found.remedy, detail=detail, line=line_of(found.frame)
    )


def of_missing(names: Sequence[str], reason: str, explained: Explanation | None, line_of: LineOf) -> Finding:
    """Return the finding about variables that have no gradient, for the same reason."""
    title = f"No gradient: {counted(len(names), 'variable')}"
    if explained is None:
        return Problem.NONE.finding(title, f"The gradient is None: {reason}.", names=tuple(names))
    return Problem.NONE.finding(
        title, f"The gradient is None. {explained.verdict.sentence}", **_explained_parts(explained, names, line_of)
    )


def of_zero(names: Sequence[str], explained: Explanation | None, line_of: LineOf) -> Finding:
    """Return the finding about variables whose gradient is exactly zero."""
    title = f"Gradient is zero: {counted(len(names), 'variable')}"
    sentence = "There is a path to the loss, but every element of the gradient is exactly zero."
    more = {"names": tuple(names)} if explained is None else _explained_parts(explained, names, line_of)
    return Problem.ZERO.finding(title, sentence, **more)


def _explained_parts(explained: Explanation, names: Sequence[str], line_of: LineOf) -> dict[str, object]:
    cut = explained.cut
    found = {
        "remedy": explained.remedy or explained.verdict.remedy,
        "detail": explained.detail or (f"At {cut.name}." if cut is not None else ""),
        "line": None if cut is None else line_of(cut.frame),
        "names": tuple(names),
    }
    return {name: value for name, value in found.items() if value}


def norms_of(weights: Sequence[Weight]) -> dict[int, float]:
    """Return the norm of the largest gradient in each place.

    Layers are compared, not variables: within a layer, a gradient may be tiny for a good reason. Gradients that are
    rounding errors do not count: they are zero in exact arithmetic.
    """
    norms: dict[int, float] = {}
    for one in weights:
        if one.gradient is not None and one.place != NO_PLACE and one.state in ("ok", "sparse"):
            norms[one.place] = max(norms.get(one.place, 0.0), one.gradient.norm)
    return norms


def vanishing(norms: Mapping[int, float], later: Mapping[int, float], places: Sequence[Place]) -> list[Finding]:
    """Return layers whose gradients are tiny beside those of layers that follow.

    Args:
      norms: The largest gradient of each place.
      later: The largest of the places after each, on its paths to the loss.
      places: The places.
    """
    small = [place for place, norm in norms.items() if 0.0 < norm < VANISHED * later.get(place, 0.0)]
    found = []
    if small:
        least = min(small, key=norms.__getitem__)
        found.append(
            Problem.VANISHING.finding(
                f"Vanishing gradient: {counted(len(small), 'layer')}",
                f"The gradient with respect to their weights is less than {VANISHED:g} of that of a layer after them.",
                detail=f"The smallest has a norm of {norms[least]:.2g}, and one after it of {later[least]:.2g}.",
                names=tuple(places[place].name for place in small),
                places=tuple(small),
            )
        )
    return found


def vanishing_in_time(places: Sequence[Place], flow: Sequence[Flow], gated: Collection[int]) -> list[Finding]:
    """Return recurrences along which gradients shrink; `gated` are the places that have gates already."""
    calls: dict[str, list[tuple[int, float]]] = {}
    for one in flow:
        place = places[one.place]
        if place.is_layer and place.calls >= _STEPS and one.backward is not None and not one.backward.nonfinite:
            calls.setdefault(place.name, []).append((one.place, one.backward.norm))
    found = []
    for name, steps in calls.items():
        (first, early), (last, late) = steps[0], steps[-1]
        if len(steps) >= _STEPS and 0.0 < early < VANISHED * late:
            found.append(
                Problem.VANISHING.finding(
                    f"Vanishing gradient along {len(steps)} calls of a layer",
                    f"The gradient with respect to what {name} returns falls from {late:.2g} at call "
                    f"{places[last].call} to {early:.2g} at call {places[first].call}: early steps hardly count.",
                    remedy=_OPEN_GATES if any(place in gated for place, _ in steps) else _GATES,
                    names=(name,),
                    places=(first, last),
                )
            )
    return found


def exploding(norms: Mapping[int, float], later: Mapping[int, float], places: Sequence[Place]) -> list[Finding]:
    """Return layer calls at which the gradient has grown beyond measure, from the loss backwards.

    Args:
      norms: The gradient with respect to what each layer call returns.
      later: The same of the last layer calls after each, on its paths to the loss; the largest.
      places: The places.
    """
    large = [place for place, norm in norms.items() if norm > EXPLODED * later.get(place, norm) > 0.0]
    if not large:
        return []
    most = max(large, key=norms.__getitem__)
    return [
        Problem.EXPLODING.finding(
            f"Exploding gradient: {counted(len(large), 'layer call')}",
            f"Towards the first layer, the gradient grows to more than {EXPLODED:g} times its size at the last layer.",
            detail=f"It has a norm of {later[most]:.2g} at the last layer, and of up to {norms[most]:.2g} before it.",
            names=tuple(dict.fromkeys(places[place].name for place in large)),
            places=tuple(large),
        )
    ]


def dead(found: Sequence[tuple[str, int, int, int]], line: Line) -> Finding:
    """Return the finding about units that are zero for the whole batch.

    Args:
      found: For each activation where it runs, the number of the place, its units, and how many of them are dead.
      line: The line of the first.
    """
    counts = [f"{count:,} of {units:,} at {name}" for name, _, units, count in found]
    more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    return Problem.DEAD.finding(
        f"Dead units: {counted(len(found), 'activation')}",
        f"At least {DEAD:.0%} of the units are zero for the whole batch: they pass no gradient on, and do not learn.",
        detail=f"{', '.join(counts[:_SHOWN])}{more}.",
        line=line,
        names=tuple(name for name, *_ in found),
        places=tuple(place for _, place, *_ in found),
    )


def conflict(cosine: Cosine) -> Finding:
    """Return the finding about two losses whose gradients point in opposite directions."""
    worst = ", ".join(f"{name} ({value:+.2f})" for name, value in cosine.worst)
    return Problem.CONFLICT.finding(
        f"Conflict: {cosine.first} and {cosine.second}",
        f"The gradients of the two losses point in opposing directions: their cosine is {cosine.value:+.2f}.",
        detail=f"They oppose each other most at {worst}." if worst else "",
        names=(cosine.first, cosine.second),
    )


def is_nonfinite(stats: Stats | None) -> bool:
    """Return whether a tensor has a NaN or an infinity."""
    return stats is not None and stats.nonfinite > 0


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "layer"), counted(2, "layer")
    ('1 layer', '2 layers')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
