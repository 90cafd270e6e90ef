"""The demo: the same few programs, run on the stock tape and on ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Console

from retrotape.cli._demo import _ours, _stock
from retrotape.cli._demo._show import Ran, Scenario, ran, show
from retrotape.record import count_as_users
from retrotape.tf.core import tf

count_as_users(os.path.dirname(__file__))  # treat its lines as user code


class Step(NamedTuple):
    """One program, written for each of the two tapes, with a title and a remark."""

    title: str
    note: str
    ours: Scenario
    stock: Scenario
    true: Mapping[str, str] = MappingProxyType({})


STEPS = (
    Step(
        "One gradient from several tapes",
        "Two models, a tape each, one Adam for both; gradients are vectors.",
        _ours.several_tapes,
        _stock.several_tapes,
    ),
    Step(
        "The chain rule across tapes",
        "y was never watched.",
        _ours.chain_rule,
        _stock.chain_rule,
        {"dy/dx": "2", "dz/dy": "0.5403", "dz/dx": "1.081"},
    ),
    Step(
        "Through the step of a stock optimizer",
        "The stock tape's path ends at an assignment; ours goes on, to any order.",
        _ours.through_a_step,
        _stock.through_a_step,
        {"w.r.t. the learning rate": "-16", "second derivative": "40"},
    ),
    Step(
        "Second order, nothing nested: a Hessian",
        "Every BatchNormalization uses this; the stock tape is silently wrong.",
        _ours.second_order,
        _stock.second_order,
        {"row 0": "0.4444 -0.2222 -0.2222"},
    ),
    Step(
        "Several losses",
        "Each loss leaves one head without a gradient; in a sum, what is missing counts as zero.",
        _ours.several_losses,
        _stock.several_losses,
    ),
    Step(
        "Saved, and differentiated in another process",
        "The file has no classes in it, and the other process has none.",
        _ours.saved,
        _stock.saved,
    ),
    Step(
        "Why is my gradient None?",
        "Every verdict has a witness in the trace; without one it says 'unknown'.",
        _ours.why_none,
        _stock.why_none,
    ),
    Step(
        "Where does the NaN come from?",
        "The op that made it, not those that propagated it.",
        _ours.find_the_nan,
        _stock.find_the_nan,
    ),
)


def run(console: Console | None = None, steps: tuple[Step, ...] = STEPS) -> None:
    """Run every step on both tapes and print the results."""
    console = console or Console()
    tf.get_logger().setLevel("ERROR")
    for number, step in enumerate(steps, 1):
        console.rule(f"[bold]{number}. {step.title}", align="left")
        console.print(step.note, style="dim", highlight=False)
        show(console, step.ours, _seeded(step.ours), _seeded(step.stock), step.true)


def _seeded(program: Scenario) -> Ran:
    tf.keras.utils.set_random_seed(1)  # both start from the same weights
    return ran(program)
