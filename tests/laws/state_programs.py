"""Random programs about variables, run in two ways: as a user writes them, and as a function of values.

A program is a list of blocks, each a list of statements and a way to run them: in eager code, in a `tf.function`, where
nothing is recorded (in a pause, on another thread, between two blocks of the tape, in a function that fails). Run as a
function of values, there are no variables: assignments put other values in their place, and the stock tape gives the
derivatives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads

Tensor = Any
SIZE = 3
UNARY = [tf.sin, tf.tanh, tf.nn.silu, lambda a: a * a, lambda a: tf.gather(a, [0, 0, 2])]
BINARY = [lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a / (b * b + 1.0), tf.maximum]
ROW = [1, 1, 2]


def _in_function(v: Any) -> Tensor:
    return tf.function(lambda: v * 1.0)()


# How a backward function may read a variable, and what that gives of its value.
READS: dict[str, tuple[Callable[[Any], Tensor], Callable[[Tensor], Tensor]]] = {
    "whole": (lambda v: v * 1.0, lambda a: a),
    "value": (lambda v: v.value(), lambda a: a),
    "gather": (lambda v: tf.gather(v, ROW), lambda a: tf.gather(a, ROW)),
    "gather_nd": (lambda v: tf.gather_nd(v, [[i] for i in ROW]), lambda a: tf.gather(a, ROW)),
    "sparse_read": (lambda v: v.sparse_read(ROW), lambda a: tf.gather(a, ROW)),
    "lookup": (lambda v: tf.nn.embedding_lookup(v, ROW), lambda a: tf.gather(a, ROW)),
    "slice": (lambda v: v[::-1], lambda a: a[::-1]),
    "function": (_in_function, lambda a: a),
    "vectorized_map": (
        lambda v: tf.vectorized_map(lambda i: tf.gather(v, i), tf.constant(ROW)),
        lambda a: tf.gather(a, ROW),
    ),
}
RECORDED = ("eager", "function", "nested")
UNRECORDED = ("pause", "pause_function", "thread", "thread_function", "thread_tape", "between", "failing")


class Statement(NamedTuple):
    """One step of a program: what it does with which tensors and variables."""

    kind: str
    number: int
    left: int
    right: int
    read: str = "whole"


class Block(NamedTuple):
    """Statements, and how they are run."""

    mode: str
    statements: tuple[Statement, ...]


def write(seed: int, modes: Sequence[str], length: int = 5) -> list[Block]:
    """Return the program of a seed."""
    rng = random.Random(seed)
    blocks = []
    for _ in range(length):
        mode = rng.choice(modes)
        kinds = ["assign", "assign_add", "scatter"] if mode in UNRECORDED else KINDS
        count = 1 if mode in UNRECORDED else rng.randint(1, 4)
        blocks.append(Block(mode, tuple(_statement(rng, kinds) for _ in range(count))))
    return blocks


KINDS = ["unary", "binary", "read", "assign", "assign_add", "scatter", "custom", "custom", "recompute"]


def _statement(rng: random.Random, kinds: Sequence[str]) -> Statement:
    numbers = (rng.randrange(1 << 16) for _ in range(3))
    return Statement(rng.choice(kinds), *numbers, rng.choice(list(READS)))


class Machine:
    """Runs statements on variables."""

    def __init__(self, variables: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        self.variables = list(variables)
        self.tensors = list(tensors)

    def read(self, number: int) -> Tensor:
        return self.variables[number % len(self.variables)] * 1.0

    def assign(self, number: int, value: Tensor) -> None:
        self.variables[number % len(self.variables)].assign(value)

    def assign_add(self, number: int, value: Tensor) -> None:
        self.variables[number % len(self.variables)].assign_add(value)

    def scatter(self, number: int, value: Tensor) -> None:
        rows = tf.IndexedSlices(value[:2], tf.constant([2, 0]))
        self.variables[number % len(self.variables)].scatter_update(rows)

    def looks(self, number: int, read: str) -> Callable[[], Tensor]:
        """Return what a backward function calls to read a variable."""
        variable = self.variables[number % len(self.variables)]
        return lambda: READS[read][0](variable)

    def operand(self, number: int) -> Tensor:
        if number % 3 == 0:
            return self.read(number // 3)
        return self.tensors[(number // 3) % len(self.tensors)]

    def run(self, statement: Statement) -> None:
        kind, number, left, right, read = statement
        if kind == "unary":
            self.tensors.append(UNARY[number % len(UNARY)](self.operand(left)))
        elif kind == "binary":
            self.tensors.append(BINARY[number % len(BINARY)](self.operand(left), self.operand(right)))
        elif kind == "read":
            self.tensors.append(self.read(number) + self.operand(left))
        elif kind == "custom":
            self.tensors.append(_custom(self.operand(left), self.looks(number, read)))
        elif kind == "recompute":
            self.tensors.append(self.recompute(number, self.operand(left)))
        else:
            getattr(self, kind)(number, tf.tanh(self.operand(left)) + 0.3 * self.operand(right))

    def recompute(self, number: int, tensor: Tensor) -> Tensor:
        variable = self.variables[number % len(self.variables)]
        return tf.recompute_grad(lambda a: tf.sin(a * variable))(tensor)


def _custom(tensor: Tensor, look: Callable[[], Tensor]) -> Tensor:
    """Return a function of a tensor with a gradient that is not its own, and that reads a variable."""

    @tf.custom_gradient
    def squashed(a: Tensor) -> Any:
        return tf.tanh(a), lambda grad: grad * (look() + 0.5)

    return squashed(tensor)


class Values(Machine):
    """Runs statements on values: what is assigned takes the place of the variable.

    With `plain` an assignment ends every path, and each read counts towards a variable. Else `mark` may name a version
    of a variable at which paths begin.
    """

    def __init__(
        self, values: Sequence[Tensor], tensors: Sequence[Tensor], plain: bool, mark: tuple[int, int] | None = None
    ) -> None:
        super().__init__(values, tensors)
        self.plain, self.mark = plain, mark
        self.versions = [0] * len(values)
        self.marked = tf.zeros(SIZE, tf.float64)
        self.sources = list(values)
        if plain:
            self.variables = [tf.stop_gradient(value) for value in values]

    def read(self, number: int) -> Tensor:
        which = number % len(self.variables)
        value = self.variables[which]
        if self.plain:
            source = self.sources[which]
            value = tf.stop_gradient(value) + (source - tf.stop_gradient(source))
        return value * 1.0

    def assign(self, number: int, value: Tensor) -> None:
        self.variables[number % len(self.variables)] = value

    def assign_add(self, number: int, value: Tensor) -> None:
        self.assign(number, self.variables[number % len(self.variables)] + value)

    def scatter(self, number: int, value: Tensor) -> None:
        old = self.variables[number % len(self.variables)]
        self.assign(number, tf.tensor_scatter_nd_update(old, [[2], [0]], value[:2]))

    def looks(self, number: int, read: str) -> Callable[[], Tensor]:
        value = self.read(number)
        return lambda: READS[read][1](value)

    def recompute(self, number: int, tensor: Tensor) -> Tensor:
        return tf.sin(tensor * self.read(number))

    def run_block(self, block: Block) -> None:
        """Run a block, and count the versions that a tape sees."""
        last = {s.number % len(self.variables): n for n, s in enumerate(block.statements) if s.kind in WRITES}
        for number, statement in enumerate(block.statements):
            self.run(statement)
            which = statement.number % len(self.variables)
            if statement.kind in WRITES and (block.mode != "function" or last[which] == number):
                self.versions[which] += 1
                if self.mark == (which, self.versions[which]):
                    self.variables[which] = tf.stop_gradient(self.variables[which]) + self.marked


WRITES = ("assign", "assign_add", "scatter")


def as_function(machine: Machine, statements: Sequence[Statement]) -> None:
    """Run statements in a `tf.function`."""

    @tf.function(autograph=False)
    def body(*tensors: Tensor) -> list[Tensor]:
        inner = Machine(machine.variables, tensors)
        for statement in statements:
            inner.run(statement)
        return inner.tensors[len(tensors) :]

    machine.tensors += body(*machine.tensors)


def _fail(machine: Machine, statements: Sequence[Statement]) -> None:
    @tf.function(autograph=False)
    def body(*tensors: Tensor) -> None:
        inner = Machine(machine.variables, tensors)
        for statement in statements:
            inner.run(statement)
        tf.debugging.assert_less(tensors[0], tf.constant(-1e9, tf.float64))

    try:
        body(*machine.tensors)
    except tf.errors.InvalidArgumentError:
        return
    raise AssertionError("the function was to fail")


def record(program: Sequence[Block], values: Sequence[Any], keep: str) -> tuple[rt.Tape, list[Any], Tensor]:
    """Run a program on a tape; return the tape, its sources and the target."""
    machine = Machine([tf.Variable(value) for value in values[2:]], [tf.constant(value) for value in values[:2]])
    sources = [*machine.tensors, *machine.variables]
    tape = rt.Tape(keep=keep)
    with ExitStack() as stack:
        stack.enter_context(tape)
        machine.tensors.append(end(machine) * machine.tensors[0])  # reads all variables
        for block in program:
            _run_block(machine, block, tape, stack)
        target = end(machine)
    return tape, sources, target


def record_in_turns(program: Sequence[Block], values: Sequence[Any]) -> tuple[rt.JoinedTape, list[Any], Tensor]:
    """Run a program with a tape for each block, and return them joined, the sources and the target."""
    machine = Machine([tf.Variable(value) for value in values[2:]], [tf.constant(value) for value in values[:2]])
    sources, tapes = [*machine.tensors, *machine.variables], [rt.Tape() for _ in range(len(program) + 2)]
    with tapes[0]:
        machine.tensors.append(end(machine) * machine.tensors[0])
    for block, tape in zip(program, tapes[1:-1], strict=True):
        with ExitStack() as stack:
            stack.enter_context(tape)
            _run_block(machine, block, tape, stack)
    with tapes[-1]:
        target = end(machine)
    return rt.join(*tapes), sources, target


def end(machine: Machine) -> Tensor:
    read = [tf.sin(machine.read(number)) for number in range(len(machine.variables))]
    return tf.reduce_sum(tf.add_n([*read, *machine.tensors[-3:]]))


def _run_block(machine: Machine, block: Block, tape: rt.Tape, stack: ExitStack) -> None:
    def plainly() -> None:
        for statement in block.statements:
            machine.run(statement)

    def on_tape() -> None:
        with rt.Tape():
            plainly()

    match block.mode:
        case "eager":
            plainly()
        case "function":
            as_function(machine, block.statements)
        case "nested":
            with rt.Tape():
                plainly()
        case "pause":
            with tape.stop_recording():
                plainly()
        case "pause_function":
            with tape.stop_recording():
                as_function(machine, block.statements)
        case "thread":
            in_threads(plainly)
        case "thread_function":
            in_threads(lambda: as_function(machine, block.statements))
        case "thread_tape":
            in_threads(on_tape)
        case "between":
            stack.close()
            plainly()
            stack.enter_context(tape)
        case "failing":
            _fail(machine, block.statements)


def truth(
    program: Sequence[Block], values: Sequence[Any], plain: bool, mark: tuple[int, int] | None = None
) -> tuple[list[Tensor | None], Tensor, list[int]]:
    """Return the derivatives of the program as a function of values, its value, and how many versions there were.

    With `mark` there is one derivative only, with respect to that version.
    """
    tensors, states = ([tf.constant(value) for value in part] for part in (values[:2], values[2:]))
    with tf.GradientTape() as tape:
        machine = Values(states, tensors, plain, mark)
        wanted = [machine.marked] if mark else [*tensors, *states]
        tape.watch(wanted)
        machine = Values(states, tensors, plain, mark) if plain else machine
        machine.tensors.append(end(machine) * machine.tensors[0])
        for block in program:
            machine.run_block(block)
        target = end(machine)
    return tape.gradient(target, wanted), target, machine.versions


def second_truth(
    program: Sequence[Block], values: Sequence[Any], ways: Sequence[Any], plain: bool
) -> list[Tensor | None]:
    """Return the product of the Hessian of the program, as a function of values, with `ways`."""
    tensors, states = ([tf.constant(value) for value in part] for part in (values[:2], values[2:]))
    wanted = [*tensors, *states]
    with tf.GradientTape() as outer:
        outer.watch(wanted)
        with tf.GradientTape() as inner:
            inner.watch(wanted)
            machine = Values(states, tensors, plain)
            machine.tensors.append(end(machine) * machine.tensors[0])
            for block in program:
                machine.run_block(block)
            target = end(machine)
        grads = inner.gradient(target, wanted, unconnected_gradients="zero")
        moved = tf.add_n([tf.reduce_sum(grad * way) for grad, way in zip(grads, ways, strict=True)])
    return outer.gradient(moved, wanted)


def begin(seed: int) -> list[np.ndarray]:
    """Return the values of two tensors and three variables to begin with."""
    return list(np.random.default_rng(seed).uniform(-1, 1, (5, SIZE)))
