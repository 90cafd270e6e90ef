"""Run many steps: several of them in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from retrotape._types import Tensor
from retrotape.execute import tracked
from retrotape.ir import DType, Func, TensorType
from retrotape.lower import FunctionBuilder
from retrotape.playback._arguments import Arguments
from retrotape.playback._known import Variant, playing
from retrotape.python import USER, of_class
from retrotape.record import RESOURCE
from retrotape.tf.core import eager_dtype, shape_of, tf

if TYPE_CHECKING:
    from retrotape.playback._step import Step
    from retrotape.playback._tree import Lowered


def _is_read_ahead(dataset: Any) -> bool:
    """Return whether elements are the same whenever they are taken: a class of the user may compute them."""
    kind = type(dataset)
    return kind in (list, tuple) or (isinstance(dataset, tf.data.Dataset) and of_class(kind) != USER)


def run_many(step: Step, dataset: Iterable[Any], steps: int, progress: bool) -> Any:
    """Run a step on each element of a dataset; see `CompiledStep.run`."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}.")
    found: list[Any] = []
    elements = tracked(dataset, "steps", _length(dataset)) if progress else iter(dataset)
    ahead = steps if _is_read_ahead(dataset) else 1  # code that yields one may change what the step reads
    while chunk := [_arguments(one) for one in islice(elements, ahead)]:
        found += _run(step, chunk)
    return _stacked(found)


def _length(dataset: Any) -> int | None:
    if isinstance(dataset, tf.data.Dataset):
        number = int(dataset.cardinality())
        return number if number >= 0 else None
    return len(dataset) if hasattr(dataset, "__len__") else None


def _arguments(element: Any) -> tuple[Any, ...]:
    return element if isinstance(element, tuple) else (element,)


def _stacked(results: Sequence[Any]) -> Any:
    """Return results of steps with a new first axis; as they are if their shapes differ."""
    if not results:
        return []
    try:
        return tf.nest.map_structure(lambda *parts: _stack(parts), *results)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        return list(results)


def _stack(parts: Sequence[Any]) -> Any:
    return tf.stack(parts) if isinstance(parts[0], tf.Tensor) else list(parts)


def _run(step: Step, chunk: Sequence[tuple[Any, ...]]) -> Iterator[Any] | list[Any]:
    """Run a step on some elements, in one call if they are of one kind that was recorded."""
    rest = list(chunk)
    found = []
    if len(rest) > 1:
        arguments = [Arguments(args, {}) for args in rest]
        variant = step.ready(arguments[0])
        if variant is None:  # record the first
            found.append(step(*rest.pop(0)))
            arguments.pop(0)
            variant = step.ready(arguments[0])
        same = all(one.key == arguments[0].key and variant_fits(variant, one) for one in arguments)
        is_due = step.audits and variant is not None and variant.is_due(len(rest))
        if variant is not None and same and len(rest) > 1 and not is_due:
            return [*found, *_together(step, variant, arguments)]
    return [*found, *(step(*args) for args in rest)]


def variant_fits(variant: Variant | None, arguments: Arguments) -> bool:
    """Return whether a recording that Python does not branch in fits some arguments."""
    if variant is None or variant.root is None or not variant.root.is_end or variant.fits(arguments) is not None:
        return False
    return variant.root.lowered().function is not None


def _together(step: Step, variant: Variant, arguments: Sequence[Arguments]) -> list[Any]:
    """Run steps as one function, which calls the function of a step for each of them."""
    assert variant.root is not None
    (entry,) = variant.entries.values()
    lowered = variant.root.lowered()
    values = [dict(zip(entry.path.inputs, one.tensors, strict=True)) for one in arguments]
    given = [[one[var] for var in lowered.takes] for one in values]
    steps = len(arguments)
    if steps not in variant.loops:
        variant.loops[steps] = _loop(lowered, steps, given[0])
    with step.lock, playing:
        variant.stamp()
        flat = variant.loops[steps]([*lowered.fixed, *(tensor for one in given for tensor in one)])
    width = len(lowered.gives)
    for number, one in enumerate(values):
        one.update(zip(lowered.gives, flat[number * width : (number + 1) * width], strict=True))
    entry.plays += len(arguments)
    variant.calls += len(arguments)
    step.played(entry, arguments[-1], values[-1])
    return [entry.pack(entry.tensors(one)) for one in values]


def _loop(lowered: Lowered, steps: int, tensors: Sequence[Tensor]) -> Any:
    builder = FunctionBuilder()
    kinds = [TensorType(eager_dtype(tensor), shape_of(tensor)) for tensor in tensors]
    fixed_kinds = [
        TensorType(eager_dtype(one), () if eager_dtype(one) == RESOURCE else shape_of(one)) for one in lowered.fixed
    ]
    fixed = [builder.argument(kind) for kind in fixed_kinds]
    given = [[builder.argument(kind) for kind in kinds] for _ in range(steps)]
    assert lowered.function is not None
    attrs = (
        ("Tin", tuple(DType(kind.dtype) for kind in (*fixed_kinds, *kinds))),
        ("Tout", tuple(map(DType, lowered.dtypes))),
        ("f", Func(lowered.function.name)),
        ("config", b""),
        ("config_proto", b""),
        ("executor_type", b""),
    )
    after: list[str] = []
    for one in given:
        made = builder.node("StatefulPartitionedCall", [*fixed, *one], attrs, after=after)
        after = [builder.latest()]
        for reference, dtype in zip(made, lowered.dtypes, strict=True):
            builder.result(reference, dtype)
    builder.run_always(after[0])
    return builder.build(single_threaded=False, stateful=True)
