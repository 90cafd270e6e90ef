"""Random steps in random surroundings, as source code, and what a run of one gives call by call.

A seed decides on the features of a step, on the arguments of each call, and on what happens between calls. For the
first few calls only values change, so that the step gets played back; after that other things do. The same seed gives
the same calls, whatever runs the step: eager code or a recording.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from string import Template
from textwrap import indent
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from laws.playback_effects import FEATURES, Feature
from playback.twins import build, generators, state_of

_HEAD = "import keras\nimport numpy as np\nimport tensorflow as tf\n\nimport retrotape as rt\n"
_VARIABLES = "variables = [tf.Variable([0.3, -0.2, 0.5]), tf.Variable([0.1, 0.4, -0.6])]\nstate = [*variables]\n"


def source_of(features: Sequence[Feature], rng: random.Random) -> str:
    """Return a module with a function that makes the step, the turns, and what is compared after each call."""
    tops, makes, turns, watched = [], [], [], []
    body, known = ["found = {}"], ["x", "y"]
    for number, feature in enumerate(features):
        names = {"a": rng.choice(known[-2:]), "b": rng.choice(known[:2]), "o": f"o{number}", "k": str(number)}
        names["v"] = f"variables[{rng.randrange(2)}]"
        top, make, step, watch, *changes = (
            Template(text).substitute(names)
            for text in (feature.top, feature.make, feature.body, feature.watch, *feature.turns)
        )
        tops += [top]
        makes += [make]
        body += [step, f"o{number} = tf.tanh(o{number})"]
        turns += [f"def turn():\n{indent(change, '    ')}\nturns.append(turn)" for change in changes]
        watched += [watch] if watch else []
        known.append(f"o{number}")
    body += ["found['last'] = " + " + ".join(f"tf.reduce_sum({name})" for name in known[2:]), "return found"]
    inner = [
        _VARIABLES + "turns = []",
        *makes,
        "def step(x, y, n=2, mode='sum'):\n" + indent("\n".join(body), "    "),
        *turns,
        f"return step, turns, lambda: (state, [{', '.join(watched)}])",
    ]
    return "\n".join([_HEAD, *filter(None, tops), "\n\ndef make():\n" + indent("\n".join(filter(None, inner)), "    ")])


class Call(NamedTuple):
    """How a step is called, and what happens before."""

    turns: tuple[int, ...] = ()  # numbers of turns
    rows: int = 4
    n: int = 2
    mode: str = "sum"
    data: str = "new"  # "twice": the same tensor as both arguments; "old": a tensor of an earlier call
    way: str = "plain"  # or under a tape, inside a function, with keywords, with arrays


VARIATIONS: list[dict[str, Any]] = [
    *[
        {"rows": 2},
        {"rows": 1},
        {"n": 4},
        {"n": 3},
        {"mode": "mean"},
        {"mode": "list"},
        {"data": "twice"},
        {"data": "old"},
    ],
    *[{"way": "ours"}, {"way": "stock"}, {"way": "function"}, {"way": "keywords"}, {"way": "arrays"}],
]


def one_by_one(turns: int, variations: Sequence[dict[str, Any]]) -> list[Call]:
    """Return calls that change one thing after the other, each twice, after the step has become warm."""
    found = [Call()] * 4
    for number in range(turns):
        found += [Call((number,)), Call()]
    for variation in variations:
        found += [Call(**variation), Call(**variation)]
    return [*found, Call(), Call()]


def at_random(turns: int, rng: random.Random) -> list[Call]:
    """Return calls that change something now and then, after the step has become warm."""
    found = [Call()] * rng.randint(3, 5)
    for _ in range(10):
        turned = (rng.randrange(turns),) if turns and rng.random() < 0.4 else ()
        found.append(Call(turned, **(rng.choice(VARIATIONS) if rng.random() < 0.35 else {})))
    return found


def program(seed: int, feature: Feature | None) -> tuple[str, random.Random]:
    """Return the source of a step, and what decides on its calls."""
    rng = random.Random(f"features {seed}")
    features = [feature] if feature else rng.sample(FEATURES, rng.randint(1, 5))
    return source_of(features, rng), rng


class Run:
    """A step in its surroundings.

    Args:
      seed: Decides on everything.
      feature: What the step does; by default the seed decides on that as well.
      variations: What changes between calls of a step with one feature.
    """

    def __init__(
        self, seed: int, feature: Feature | None = None, variations: Sequence[dict[str, Any]] = VARIATIONS
    ) -> None:
        self.source, rng = program(seed, feature)
        module, file = ModuleType("played_back"), f"<step {seed}>"
        sys.modules["played_back"] = module  # data classes look there
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        exec(compile(self.source, file, "exec"), vars(module))
        self.step, self._turns, self._watched = module.make()
        turns = len(self._turns)
        self.schedule = one_by_one(turns, variations) if feature else at_random(turns, rng)
        values = np.random.default_rng(seed)
        self._data = [
            tf.constant(values.uniform(-1, 1, size=(4, 3)), tf.float32) for _ in range(len(self.schedule) + 1)
        ]

    def calls(self, step: Callable[..., Any]) -> Iterator[Any]:
        """Call a step in place of the program's own; yield what each call gave and what there is after it."""
        called = tf.function(lambda x, y, n, mode: step(x, y, n, mode), autograph=False)
        for number, call in enumerate(self.schedule):
            for turn in call.turns:
                self._turns[turn]()
            x, y = self._data[0 if call.data == "old" else number + 1][: call.rows], self._data[number][: call.rows]
            mode: Any = ["sum"] if call.mode == "list" else call.mode
            try:
                way = {"function": called}.get(call.way, step)
                found = self._call(way, call.way, (x, x if call.data == "twice" else y, call.n, mode))
            except rt.errors.PlaybackError:
                raise
            except Exception as error:
                found = type(error).__name__
            yield call, state_of((found, mode, self._watched()))
        yield Call(), generators()

    @staticmethod
    def _call(step: Callable[..., Any], way: str, args: tuple[Any, ...]) -> Any:
        x, y, n, mode = args
        if way == "keywords":
            return step(y=y, x=x, mode=mode, n=n)
        if way == "arrays":
            return step(tf.constant(x.numpy()), y, np.int64(n).item(), mode)
        if way not in ("ours", "stock"):
            return step(*args)
        with rt.Tape() if way == "ours" else tf.GradientTape() as tape:
            tape.watch(x)
            found = step(*args)
        return {**found, "gradient": tape.gradient(found["last"], x)}


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Restore what features change in Keras and in the environment."""
    epsilon, policy = keras.config.epsilon(), keras.config.dtype_policy()
    try:
        yield
    finally:
        keras.config.set_epsilon(epsilon)
        keras.config.set_dtype_policy(policy)
        for name in [name for name in os.environ if name.startswith("PLAYED")]:
            del os.environ[name]


def run(
    seed: int,
    wrap: Callable[[Any], Any],
    feature: Feature | None = None,
    variations: Sequence[dict[str, Any]] = VARIATIONS,
) -> list[Any]:
    """Return what each call gave, up to the first that is refused."""
    found: list[Any] = []
    with settings_restored(), contextlib.suppress(rt.errors.PlaybackError):
        made = build(lambda: Run(seed, feature, variations), seed)
        for outcome in made.calls(wrap(made.step)):
            found.append(outcome)  # noqa: PERF402  # what came before the error is kept
    return found
