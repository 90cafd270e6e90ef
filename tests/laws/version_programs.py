"""Random programs whose functions assign variables, read them, branch, loop and call each other.

Such a program runs with variables and `tf.function`, for a tape, and as a pure function, in which variables are tensors
and nothing is called. The latter can move any value that was assigned, which gives the truth about versions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

UNARY = (lambda a: 2.0 * a, tf.sin, tf.tanh, lambda a: a * a, lambda a: tf.exp(-a * a), lambda a: tf.cumsum(a) * 0.5)
BINARY = (lambda a, b: a * b, lambda a, b: a - 0.5 * b, lambda a, b: a / (b * b + 1.0))
VARIABLES, INPUTS, SIZE = 2, 2, 2


class Node(NamedTuple):
    """A statement: `kind` is assign, add, make, call, branch or loop; `parts` are its parameters."""

    kind: str
    parts: tuple[Any, ...]


def make(seed: int) -> list[Node]:
    """Return a program with at least one function that assigns."""
    chance = random.Random(seed)
    body = [_statement(chance, 0) for _ in range(chance.randint(1, 3))]
    body.insert(chance.randint(0, len(body)), Node("call", (_function(chance, 1),)))
    return [*body, Node("make", _expression(chance))] if chance.random() < 0.5 else body


def _function(chance: random.Random, depth: int) -> list[Node]:
    body = [_statement(chance, depth) for _ in range(chance.randint(1, 3))]
    return [
        *body,
        Node("assign", (chance.randrange(VARIABLES), _expression(chance))),
        Node("make", _expression(chance)),
    ]


def _statement(chance: random.Random, depth: int) -> Node:
    kinds = ["assign", "add", "make", "make"] + (["call"] if depth < 3 else []) + (["branch", "loop"] if depth else [])
    kind = chance.choice(kinds)
    if kind == "make":
        return Node(kind, _expression(chance))
    if kind in ("assign", "add"):
        return Node(kind, (chance.randrange(VARIABLES), _expression(chance)))
    if kind == "call":
        return Node(kind, (_function(chance, depth + 1),))
    inner = Node(chance.choice(["assign", "add"]), (chance.randrange(VARIABLES), _expression(chance)))
    return Node(kind, (chance.randint(1, 3), inner))


def _expression(chance: random.Random) -> tuple[Any, ...]:
    """Return two numbers of operations, and two operands: a variable, or one of the tensors that were made last."""
    operands = [(chance.random() < 0.6, chance.randrange(8)) for _ in range(2)]
    return (chance.randrange(len(UNARY)), chance.randrange(len(BINARY)), *operands)


class _Machine:
    """Runs statements; how variables are read and assigned is decided by what derives from it."""

    def __init__(self, inputs: Sequence[tf.Tensor]) -> None:
        self.made = list(inputs)

    def run(self, body: Sequence[Node]) -> None:
        for node in body:
            getattr(self, f"_{node.kind}")(*node.parts)

    def value(self, unary: int, binary: int, *operands: tuple[bool, int]) -> tf.Tensor:
        first, second = (
            self.read(number % VARIABLES) if is_variable else self.made[-1 - number % min(3, len(self.made))]
            for is_variable, number in operands
        )
        return BINARY[binary](UNARY[unary](first), second)

    def read(self, number: int) -> tf.Tensor:
        raise NotImplementedError

    def write(self, number: int, value: tf.Tensor) -> None:
        raise NotImplementedError

    def _make(self, *expression: Any) -> None:
        self.made.append(self.value(*expression))

    def _assign(self, number: int, expression: tuple[Any, ...]) -> None:
        self.write(number, self.value(*expression))

    def _add(self, number: int, expression: tuple[Any, ...]) -> None:
        self.write(number, self.read(number) + 0.5 * self.value(*expression))


class OnVariables(_Machine):
    """With variables and functions."""

    def __init__(self, inputs: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        super().__init__(inputs)
        self.variables = variables

    def read(self, number: int) -> tf.Tensor:
        return self.variables[number] * 1.0

    def write(self, number: int, value: tf.Tensor) -> None:
        self.variables[number].assign(value)

    def _call(self, body: Sequence[Node]) -> None:
        @tf.function(autograph=False)
        def function(made: list[tf.Tensor]) -> tf.Tensor:
            inner = OnVariables(made, self.variables)
            inner.run(body)
            return inner.made[-1]

        self.made.append(function(self.made[-3:]))

    def _branch(self, count: int, node: Node) -> None:
        def taken() -> tf.Tensor:
            OnVariables(self.made, self.variables).run([node])
            return tf.constant(0)

        tf.cond(tf.reduce_sum(self.made[-1]) > 0.1 * count, taken, lambda: tf.constant(0))

    def _loop(self, count: int, node: Node) -> None:
        def step(i: tf.Tensor) -> tf.Tensor:
            OnVariables(self.made, self.variables).run([node])
            return i + 1

        tf.while_loop(lambda i: i < count, step, [tf.constant(0)])


class Eagerly(OnVariables):
    """With variables, but op by op: each assignment makes a version of its own."""

    def _call(self, body: Sequence[Node]) -> None:
        inner = Eagerly(self.made[-3:], self.variables)
        inner.run(body)
        self.made.append(inner.made[-1])

    def _branch(self, count: int, node: Node) -> None:
        if tf.reduce_sum(self.made[-1]) > 0.1 * count:
            Eagerly(self.made, self.variables).run([node])

    def _loop(self, count: int, node: Node) -> None:
        for _ in range(count):
            Eagerly(self.made, self.variables).run([node])


def _assigned_in(body: Sequence[Node]) -> set[int]:
    """Return the variables that a function may assign."""
    found = set()
    for node in body:
        if node.kind in ("assign", "add"):
            found.add(node.parts[0])
        elif node.kind == "call":
            found |= _assigned_in(node.parts[0])
        elif node.kind in ("branch", "loop"):
            found |= _assigned_in([node.parts[1]])
    return found


class Pure(_Machine):
    """With tensors only.

    Args:
      inputs: The inputs.
      values: What the variables hold at first.
      moves: What is added to values that were assigned, by variable and number of the version.
      assigned: What is assigned, in order, whatever was computed for it: then no path passes an assignment.

    Attributes:
      eager: The number that a version has where each assignment makes one, by variable and number.
    """

    def __init__(
        self,
        inputs: Sequence[tf.Tensor],
        values: Sequence[tf.Tensor],
        moves: Mapping[tuple[int, int], tf.Tensor],
        assigned: Sequence[tf.Tensor] | None = None,
    ) -> None:
        super().__init__(inputs)
        self.values, self._moves = list(values), moves
        self.values = [value + moves.get((number, 0), 0.0) for number, value in enumerate(values)]
        self.versions = [1] * len(values)
        self.eager: dict[tuple[int, int], int] = {(number, 0): 0 for number in range(len(values))}
        self._writes = [0] * len(values)
        self._inside: list[int] | None = None  # how many assignments to each variable are left in the call
        self._counting = False
        self._given = None if assigned is None else iter(assigned)
        self.assigned: list[tf.Tensor] = []

    def read(self, number: int) -> tf.Tensor:
        return self.values[number]

    def write(self, number: int, value: tf.Tensor) -> None:
        self.values[number] = value
        if self._counting:
            assert self._inside is not None
            self._inside[number] += 1
            return
        is_version = True
        self._writes[number] += 1
        if self._inside is not None:
            self._inside[number] -= 1
            is_version = not self._inside[number]  # a call makes one version of each variable: its last value
        if is_version:
            value = value + self._moves.get((number, self.versions[number]), 0.0)
            self.eager[number, self.versions[number]] = self._writes[number]
            self.versions[number] += 1
        self.values[number] = value if self._given is None else next(self._given)
        self.assigned.append(self.values[number])

    def _call(self, body: Sequence[Node]) -> None:
        is_outermost = self._inside is None
        if is_outermost:  # once to count the assignments, once in earnest
            before, self._inside, self._counting = (list(self.made), list(self.values)), [0] * VARIABLES, True
            self._within(body)
            (self.made, self.values), self._counting = before, False
            missing = [number for number in _assigned_in(body) if not self._inside[number]]
        self._within(body)
        if is_outermost:
            self._inside = None
            for number in missing:  # it might have been assigned, and has a version too
                self.values[number] += self._moves.get((number, self.versions[number]), 0.0)
                self.versions[number] += 1

    def _within(self, body: Sequence[Node]) -> None:
        outer = self.made
        self.made = outer[-3:]
        self.run(body)
        self.made = [*outer, self.made[-1]]

    def _branch(self, count: int, node: Node) -> None:
        if tf.reduce_sum(self.made[-1]) > 0.1 * count:
            self._apart(node)

    def _loop(self, count: int, node: Node) -> None:
        for _ in range(count):
            self._apart(node)

    def _apart(self, node: Node) -> None:
        made = list(self.made)
        self.run([node])
        self.made = made


def start(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the inputs, and what the variables hold at first."""
    rng = np.random.default_rng(seed)
    found = rng.uniform(-1, 1, (INPUTS + VARIABLES, SIZE))
    return list(found[:INPUTS]), list(found[INPUTS:])


def target(machine: _Machine, seed: int) -> tf.Tensor:
    """Return the scalar that is differentiated: of the last tensors, and of what the variables hold."""
    total = tf.reduce_sum(machine.made[-1] * 0.7)
    if seed % 3:
        total += tf.reduce_sum(tf.tanh(machine.made[-2]))
    if seed % 2:
        total += tf.reduce_sum(sum(tf.sin(machine.read(number)) for number in range(VARIABLES)))
    return total


def gradient(function: Callable[..., tf.Tensor], *at: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradient of a pure function by the stock tape; zeros where there is no path."""
    with tf.GradientTape() as tape:
        tape.watch(at)
        value = function(*at)
    return tape.gradient(value, list(at), unconnected_gradients="zero")
