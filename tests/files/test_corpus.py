"""Every program of the conformance table that can be saved says the same when it is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from conform.cases import CASES
from conform.table import Ask, Case
from helpers.trips import assert_same
from retrotape.errors import NotPersistableError, NotRecordedError

# Why a case cannot be saved, or what is not the same; everything else is.
REFUSED = {
    "ctc_loss": "Empty",
    "hash_table": "LookupTableFindV2",
    "mutable_hash_table": "LookupTableFindV2",
    "dataset_iterator": "IteratorGetNext",
    "dataset_loop": "IteratorGetNext",
    "queue": "QueueDequeueV2",
    "function_with_dropout": "RandomUniform",
    "function_with_random_generator": "RngReadAndSkip",
}
ROUNDED = {"function_with_signature"}  # TensorFlow rewrites a function before it runs
ZERO_OR_NONE = {"function_with_unused_output"}  # a function that is looked into has no path, not one of zeros
NOT_ON_CPU = {"layer_conv2d_groups"}  # the gradient of a grouped convolution only runs compiled
UNTOUCHED = {"layer_dropout_inference"}  # it hands back what it is given, and no op runs
DAILY = ("queue", "function_with_dropout", "function_with_unused_output", "numpy_function", *UNTOUCHED)
EVERY = 17  # of the cases, every so many run every day


def _marked(number: int, case: Case) -> Any:
    daily = number % EVERY == 0 or case.name in DAILY
    return pytest.param(case, id=case.name, marks=() if daily else pytest.mark.slow)


def _is_one_tensor(item: Any) -> bool:
    return isinstance(getattr(item, "_value", item), (tf.Tensor, tf.Variable))


@pytest.mark.parametrize("case", [_marked(number, case) for number, case in enumerate(CASES)])
@pytest.mark.filterwarnings("ignore")
def test_case(case, tmp_path):
    run, sources = case.made()
    with rt.Tape() as tape:
        outcome = run(*sources)
    ask = outcome if isinstance(outcome, Ask) else Ask(outcome)
    sources, targets = tf.nest.flatten(sources if ask.sources is None else ask.sources), tf.nest.flatten(ask.target)
    if not all(map(_is_one_tensor, [*sources, *targets])):
        pytest.skip("a name stands for one tensor")
    log = tape._recorded()
    parts = [getattr(source, "_value", source) for source in sources]
    known = {
        f"source {number}": part
        for number, part in enumerate(parts)
        if (log.find(part) if isinstance(part, tf.Tensor) else log.history(part)) is not None
    }
    names = {**known, "target": targets}
    path = tmp_path / "a.tape"
    if case.name in REFUSED:
        with pytest.raises(NotPersistableError, match=REFUSED[case.name]):
            tape.save(path, names)
        return
    if case.name in UNTOUCHED:
        with pytest.raises(NotRecordedError, match=r"'target/0', .* was not used in what was recorded"):
            tape.save(path, names)
        return
    tape.save(path, names)
    loaded = rt.load(path)
    said = [f"target/{number}" for number in range(len(targets))]
    for name, target in zip(said, targets, strict=True):
        if case.name not in ROUNDED:
            assert loaded[name].numpy().tobytes() == target.numpy().tobytes()
    if case.name in NOT_ON_CPU:
        with pytest.raises(rt.errors.CorruptTapeError, match="not supported on CPU"):
            loaded.gradient(said, list(known))
        return
    wanted = tape.gradient(targets, list(known.values()))
    for got, grad in zip(loaded.gradient(said, list(known)), wanted, strict=True):
        if got is None and case.name in ZERO_OR_NONE:
            assert not tf.math.count_nonzero(grad)
        else:
            assert_same(got, grad, max(1e-5, case.tolerance))
