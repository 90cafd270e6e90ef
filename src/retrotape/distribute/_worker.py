"""What a worker does: computes one chunk, and writes its result to a file."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np

from retrotape._version import __version__
from retrotape.distribute import _question as questions
from retrotape.distribute._codec import decode, encode
from retrotape.distribute._job import Gradient, Item, Job, Outcome, Task, failed_path
from retrotape.distribute._partial import DamagedError, is_whole, read, write
from retrotape.distribute._paths import has_changed, local_copy
from retrotape.distribute._references import check as check_references
from retrotape.distribute._sums import Summand, Sums, summands
from retrotape.errors import FarmError, ProcessDiedError, ShapeMismatchError, SharedNameError
from retrotape.grads import Gradients, NamedSource, name_of
from retrotape.tape.loaded import load as load_tape
from retrotape.tf.core import tf
from retrotape.tf.nests import is_variable

Failed = dict[int, str]  # the position of an item in its chunk, and the error


def run(task: Task) -> Outcome:
    """Compute a chunk, unless its result is there by now; return what came of it. Only `Exception`s are reported."""
    try:
        if is_whole(task.path):  # a scheduler ran it twice, or another driver did it
            return Outcome(task.key)
        _check_versions(task.job)
        content = (_summed if task.job.summed else _each)(task)
        failed = len(content["failed"])
        write(failed_path(task.path) if failed else task.path, content)
        return Outcome(task.key, failed)
    except DamagedError as error:
        if is_whole(task.path):  # another driver finished the chunk, and removed the inputs
            return Outcome(task.key)
        text = f"The inputs of a chunk, {str(error)!r}, were removed or damaged. Call again: they are written anew"
        return Outcome(task.key, error=("farm", text, "", traceback.format_exc()))
    except _ItemFailed as error:
        return Outcome(task.key, error=("tape", error.text, error.name, error.trace))
    except ShapeMismatchError as error:
        return Outcome(task.key, error=("shape", str(error), "", ""))
    except FarmError as error:
        return Outcome(task.key, error=("farm", str(error), "", traceback.format_exc()))
    except Exception as error:
        text = f"A worker failed with {type(error).__name__}: {error}"
        return Outcome(task.key, error=("farm", text, "", traceback.format_exc()))


class _ItemFailed(Exception):
    """An item failed, and the farm is to stop."""

    def __init__(self, name: str, text: str, trace: str) -> None:
        super().__init__(text)
        self.name, self.text, self.trace = name, text, trace


def _check_versions(job: Job) -> None:
    here = (__version__, tf.__version__)
    if here != job.versions:
        names = "retrotape {} and TensorFlow {}"
        raise FarmError(
            f"A worker has {names.format(*here)}, and this process {names.format(*job.versions)}",
            "Install the same versions in both.",
        )


def _attempt(task: Task, failed: Failed, number: int, compute: Callable[[], Any]) -> Any:
    """Return a result; None where the item failed, which is noted, or ends the chunk."""
    try:
        if number in task.deadly:
            raise ProcessDiedError
        if task.note is not None:
            with open(task.note, "w", encoding="ascii") as note:
                note.write(str(number))
        return compute()
    except (Exception, SystemExit) as error:  # `sys.exit` in a question does not end the worker
        text = task.items[number].problem or f"{type(error).__name__}: {error}"
        if task.job.stop:
            raise _ItemFailed(task.items[number].name, text, traceback.format_exc()) from error
        failed[number] = text
        return None


def _summed(task: Task) -> dict[str, Any]:
    groups: dict[Any, Sums] = {}  # by names and shapes: which of them can be summed is known when all chunks are there
    failed = Failed()
    query = task.job.query
    assert query is not None
    ask = query_gradient(query, summed=True)

    def gradient(tape: Any) -> list[Summand]:
        return summands(ask(tape))

    for number, item in enumerate(task.items):
        found = _attempt(task, failed, number, partial(_on_tape, task.job, item, gradient))
        if found is not None:
            names = tuple(sorted((str(one.key), *one.key.shape) for one in found))
            groups.setdefault(names, Sums()).add(number, item.name, found)
    contents = [group.content() for group in groups.values()]
    if task.job.stop and len(contents) > 1:
        Sums().merge_all(contents, [item.name for item in task.items], stop=True)
    return {"sums": contents, "failed": failed}


def _each(task: Task) -> dict[str, Any]:
    failed = Failed()
    job = task.job
    question = query_gradient(job.query) if job.query is not None else _by_name(_question(job))
    if job.replayed is None:
        asked = [partial(_on_tape, job, item, question) for item in task.items]
    else:
        tape, inputs = _replayed(job), _inputs(task)
        asked = [partial(_on_replay, tape, one, job.trust, question) for one in inputs]
    results = [_attempt(task, failed, number, _encoded(compute)) for number, compute in enumerate(asked)]
    return {"items": results, "failed": failed}


def _encoded(compute: Callable[[], Any]) -> Callable[[], np.ndarray]:
    """Wrap a computation so that a result that cannot be stored is the item's failure, not that of the chunk."""

    def encoded() -> np.ndarray:
        found = compute()
        try:
            return np.frombuffer(encode(found), np.uint8)
        except TypeError as error:
            raise TypeError(f"question= returned something that cannot be stored. {error}") from None

    return encoded


def _question(job: Job) -> Callable[[Any], Any]:
    if job.question is not None:
        return job.question
    assert job.question_file is not None
    question = questions.load(*job.question_file)
    check_references(job.references)
    return question


def _inputs(task: Task) -> list[dict[str, Any]]:
    data = task.inputs
    if isinstance(data, str):
        data = read(data)["inputs"].tobytes()
    assert data is not None
    return decode(data)["inputs"]


def _replayed(job: Job) -> Any:
    if not isinstance(job.replayed, Item):
        return job.replayed
    return _kept_tape(job.replayed.path, job.replayed.stamp, tuple(sorted(job.load.items())))


@lru_cache(maxsize=1)
def _kept_tape(path: str, known: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """Return a tape that many chunks replay; a worker keeps the last one."""
    _check_stamp(path, known)
    load = dict(options)
    return load_tape(local_copy(path, load.get("limits")), **load)


@contextmanager
def opened(job: Job, item: Item) -> Iterator[Any]:
    """Load a tape, close it if it has a process of its own, and raise if the file changes meanwhile."""
    if not item.stamp:
        raise FileNotFoundError(item.problem)
    _check_stamp(item.path, item.stamp)
    tape: Any = load_tape(local_copy(item.path, job.load.get("limits")), **job.load)
    try:
        yield tape
    finally:
        if hasattr(tape, "close"):
            tape.close()
    _check_stamp(item.path, item.stamp)


def _check_stamp(path: str, known: str) -> None:
    if has_changed(path, known):
        raise RuntimeError(f"{path!r} changed while the farm ran. Call again.")


def _on_tape(job: Job, item: Item, question: Callable[[Any], Any]) -> Any:
    with opened(job, item) as tape:
        return question(tape)


def _on_replay(tape: Any, inputs: dict[str, Any], trust: bool, question: Callable[[Any], Any]) -> Any:
    return question(tape.replay(inputs, trust=trust))


def query_gradient(query: Gradient, *, summed: bool = False) -> Callable[[Any], Gradients]:
    """Return the question that `farm.backward` asks of each tape; for a sum, a name must mean the same on all."""

    def question(tape: Any) -> Gradients:
        options = {"through_updates": query.through_updates}
        if query.wrt is None:
            grads = tape.backward(query.target, **options)
            if summed:
                _refuse_shared_names(tape, [(name_of(key), key) for key in grads.keys()])
            return _with_names(tape, grads)
        sources = [tape[name] for name in query.wrt]
        if summed:
            _refuse_shared_names(tape, zip(query.wrt, sources, strict=True))
        once = {id(source): source for source in sources}  # two names of one source: gradients of a key are summed
        grads = tape.backward(query.target, list(once.values()), **options)
        keys = dict(zip(once, grads.keys(), strict=True))
        return _renamed(grads, [(name, keys[id(source)]) for name, source in zip(query.wrt, sources, strict=True)])

    return question


def _refuse_shared_names(tape: Any, sources: Iterable[tuple[str, Any]]) -> None:
    """Raise if a source is a variable that is called as another one is, unless by a name that the user gave it.

    A tape calls the second one `v'`, in the order of their use, which may be another on another tape.
    """
    for name, source in sources:
        own = name_of(source)
        second = f"{own}'"
        meant = own == re.sub(r"'\d*$", "", name) or own.endswith("/" + re.sub(r"'\d*$", "", name))
        if meant and is_variable(source) and second in tape.names and name_of(tape[second]) == own:
            raise SharedNameError(own)


def _by_name(question: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a question whose `Gradients`, wherever they are in its result, are keyed by names on the tape."""

    def named(tape: Any) -> Any:
        def convert(found: Any) -> Any:
            if isinstance(found, Gradients):
                return _with_names(tape, found)
            if isinstance(found, dict):
                return {key: convert(item) for key, item in found.items()}
            if isinstance(found, (list, tuple)):
                items = [convert(item) for item in found]
                return items if isinstance(found, list) else tuple(items)
            return found

        return convert(question(tape))

    return named


def _with_names(tape: Any, grads: Gradients) -> Gradients:
    return _renamed(grads, [(_name_on(tape, key), key) for key in grads.keys()])


def _name_on(tape: Any, key: Any) -> str:
    """Return the name of a source on a tape: its own, if it is there, or else the first that refers to it."""
    own = name_of(key)
    for name in [*([own] if own in tape.names else []), *tape.names]:
        if tape[name] is key:
            return name
    return own


def _renamed(grads: Gradients, names: list[tuple[str, Any]]) -> Gradients:
    """Return the same gradients, keyed by names."""
    sources = [(NamedSource(name, key.shape, key.dtype), key) for name, key in names]
    if len({str(source) for source, _ in sources}) < len(sources):
        twice = sorted(name for name, count in Counter(str(source) for source, _ in sources).items() if count > 1)
        raise ValueError(f"Two sources are called {twice[0]!r}. Give them names: `tape.save(path, names={{...}})`.")
    missing = [(source, grads.why(key)) for source, key in sources if grads.get(key) is None]
    return Gradients([(source, grads.get(key)) for source, key in sources], missing)
