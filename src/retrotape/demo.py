"""A tour: the same few programs on the stock tape and on ours, really run."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from retrotape._tf import tf
from retrotape.tape import Tape


class Step(NamedTuple):
    """One program, written for each of the two tapes."""

    title: str
    ours: Callable[[], Any]
    stock: Callable[[], Any]


def unwatched() -> Any:
    """Ask about a tensor in the middle, twice."""
    x = tf.constant(1.0)
    with Tape() as tape:
        y = x**2
        z = tf.sin(y)
    return tape.gradient(z, y), tape.gradient(z, x)


def unwatched_stock() -> Any:
    """Do the same with the stock tape."""
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        y = x**2
        z = tf.sin(y)
    return tape.gradient(z, y), tape.gradient(z, x)


def hessian() -> Any:
    """Take the second derivative of a variance from one recording."""
    x = tf.constant([1.0, 2.0, 4.0])
    with Tape() as tape:
        variance = tf.nn.moments(x, [0])[1]
    return tape.hessian(variance, x)[0]


def hessian_stock() -> Any:
    """Nest stock tapes for the same."""
    x = tf.constant([1.0, 2.0, 4.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            variance = tf.nn.moments(x, [0])[1]
        slope = inner.gradient(variance, x)
    return outer.jacobian(slope, x)[0]


def learning_rate() -> Any:
    """Differentiate through a step of a stock Keras optimizer."""
    w = tf.keras.Variable([1.0, 2.0])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build([w])
    with Tape() as tape:
        optimizer.apply(tape.gradient(tf.reduce_sum(w**2), [w]), [w])
        loss = tf.reduce_sum(w**2)
    return tape.gradient(loss, optimizer.learning_rate, through_updates=True)


def learning_rate_stock() -> Any:
    """Try the same with the stock tape."""
    w = tf.keras.Variable([1.0, 2.0])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build([w])
    with tf.GradientTape(persistent=True) as tape:
        optimizer.apply(tape.gradient(tf.reduce_sum(w**2), [w.value]), [w])
        loss = tf.reduce_sum(w**2)
    return tape.gradient(loss, optimizer.learning_rate.value)


STEPS = (
    Step("Ask about a tensor in the middle, then ask again", unwatched, unwatched_stock),
    Step("Second derivatives of a variance (first row; true: 0.444 -0.222 -0.222)", hessian, hessian_stock),
    Step("Through a stock optimizer's step, by its learning rate (true: -16)", learning_rate, learning_rate_stock),
)


def run(console: Console | None = None) -> None:
    """Run every step on both tapes and print what each gives."""
    console = console or Console()
    tf.get_logger().setLevel("ERROR")
    for number, step in enumerate(STEPS, 1):
        console.rule(f"[bold]{number}. {step.title}", align="left")
        console.print(Syntax(_body(step.ours), "python", theme="ansi_dark", background_color="default"))
        table = Table("tf.GradientTape", "retrotape")
        table.add_row(_shown(step.stock), _shown(step.ours))
        console.print(table)


def _body(function: Callable) -> str:
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    return textwrap.dedent("\n".join(lines[2:]))


def _shown(function: Callable[[], Any]) -> str:
    try:
        return _text(function())
    except Exception as error:
        return f"[red]crashes: {type(error).__name__}[/red]"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if value is None:
        return "[red]None[/red]"
    return " ".join(f"{number:.4g}" for number in value.numpy().reshape(-1))
