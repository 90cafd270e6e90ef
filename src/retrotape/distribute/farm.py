"""Farms: one query over thousands of saved tapes, or over many inputs of one, in one process or on many machines.

Tapes are taken in chunks of a fixed size. The result of each chunk is a file, which appears when it is whole; between
processes only paths travel. So a sum is the same to the bit whatever computes the chunks and in which order, nothing
counts twice or is lost when a worker dies, and with `work=` a farm that was interrupted goes on where it was.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from retrotape.distribute import _question as questions
from retrotape.distribute._arguments import Options, checked_name, checked_names, checked_options
from retrotape.distribute._drive import Failures, Work, contents, drive
from retrotape.distribute._fingerprint import fingerprint
from retrotape.distribute._inputs import input_tasks, remove_inputs, replayed_tape
from retrotape.distribute._job import Gradient, Job, digest, plain, tape_tasks
from retrotape.distribute._named import NamedGradients
from retrotape.distribute._paths import items_of, tapes_in
from retrotape.distribute._references import references
from retrotape.distribute._results import Failure, Results, Total
from retrotape.distribute._sums import Sums
from retrotape.files.saved import Path

__all__ = ["Failure", "NamedGradients", "Results", "Total", "backward", "map", "replay"]

CHUNK = 16  # tapes in one chunk; another number gives a sum whose last bits may differ
_Reduce = Literal["sum", "mean", "each"]
_Found = TypeVar("_Found")


@overload
def backward(
    paths: Path | Iterable[Path],
    target: str,
    wrt: Any = None,
    *,
    reduce: Literal["each"],
    **options: Any,
) -> Results: ...


@overload
def backward(
    paths: Path | Iterable[Path],
    target: str,
    wrt: Any = None,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    **options: Any,
) -> Total: ...


def backward(  # type: ignore[misc]  # the overloads leave out the options for brevity
    paths: Path | Iterable[Path],
    target: str,
    wrt: Any = None,
    *,
    reduce: _Reduce = "sum",
    through_updates: bool = False,
    executor: Any = None,
    chunk: int = CHUNK,
    work: Path | None = None,
    on_error: Literal["stop", "continue"] = "stop",
    duplicates: Literal["raise", "allow"] = "raise",
    progress: bool | None = None,
    load: Mapping[str, Any] | None = None,
) -> Total | Results:
    """Return the gradient of a target over many saved tapes: the sum, the mean, or each.

    A tape without a path to a source counts as zero for it; a source without a path on any tape has no gradient. Sums
    are in double precision, and the same to the bit for the same tapes and the same `chunk`, whatever the executor.
    (TensorFlow itself may sum a large tensor in another order where it has another number of threads;
    `TF_NUM_INTRAOP_THREADS=1` everywhere prevents it.)

    Args:
      paths: A pattern, "steps/*.tape", whose tapes are taken in sorted order, or a list of paths. A folder with a
        `manifest.json`, which holds the shards of one tape, is one tape.
      target: The name of the target on each tape.
      wrt: The names of the sources, as one name or a nest of them; every trainable variable of each tape if None.
      reduce: "sum"; "mean", over the tapes that did not fail; or "each", the gradients of each tape.
      through_updates: As for `tape.gradient`.
      executor: Where to compute: this process if None; as many processes as the number given, which are restarted if
        they die; a `concurrent.futures` executor; a `dask.distributed.Client`; or "ray", which starts Ray on this
        machine unless you have called `ray.init`.
      chunk: How many tapes make one unit of work, and one partial result.
      work: A folder for partial results, which all workers can write to. Called again with the same folder, a farm that
        was interrupted, in whatever way, goes on where it was; what depends on a tape that has changed is computed
        anew. Several farms may use the same folder, even at once. By default a temporary one.
      on_error: "stop" raises when a tape fails; "continue" leaves it out and lists it in `failed`. A tape whose sources
        have other shapes than those of the tapes before it cannot be summed, and fails.
      duplicates: "raise" refuses a tape that is given more than once, also by another path to it; "allow" counts it as
        often as it is given.
      progress: Whether to show a progress bar on stderr; if None, in a terminal and if it takes a moment.
      load: Options for `rt.load`, for example `{"isolate": True}` for untrusted files.

    Returns:
      A `Total`, keyed by the names as given in `wrt`; for "each", `Results` with one `NamedGradients` for each tape.

    Raises:
      NoTapesError: If there are no such tapes.
      FarmError: If a tape fails or is given twice, if all fail, or if workers were lost.
      ShapeMismatchError: If a name has different shapes on different tapes.

    >>> import os, tempfile
    >>> folder, w = tempfile.mkdtemp(), tf.Variable(2.0, name="w")
    >>> for step in range(3):
    ...     with rt.Tape() as tape:
    ...         loss = w ** 2 * float(step)
    ...     _ = tape.save(os.path.join(folder, f"{step}.tape"), loss=loss)
    >>> total = rt.farm.backward(os.path.join(folder, "*.tape"), "loss", "w")
    >>> float(total["w"]), total.count
    (12.0, 3)
    """
    if reduce not in ("sum", "mean", "each"):
        raise ValueError(f"reduce= must be 'sum', 'mean' or 'each', got {reduce!r}.")
    query = Gradient(checked_name(target), checked_names(wrt), bool(through_updates))
    options = checked_options(executor, chunk, work, on_error, progress, load)
    tapes = tapes_in(paths, duplicates)
    if reduce == "each":
        job = Job(query=query, load=options.load, stop=options.stop)
        return _in_folder(options, lambda work: _results(job, digest("each", query), tapes, options, work))
    job = Job(summed=True, query=query, load=options.load, stop=options.stop)
    return _in_folder(options, lambda work: _total(job, tapes, options, work, reduce == "mean"))


def map(
    paths: Path | Iterable[Path],
    question: Callable[[Any], Any],
    *,
    executor: Any = None,
    chunk: int = CHUNK,
    work: Path | None = None,
    on_error: Literal["stop", "continue"] = "stop",
    duplicates: Literal["raise", "allow"] = "raise",
    progress: bool | None = None,
    load: Mapping[str, Any] | None = None,
) -> Results:
    """Return the result of a function for each of many saved tapes.

    Args:
      paths: As for `backward`.
      question: A function of a loaded tape. It returns tensors, arrays, numbers, text, `Gradients`, or a nest of them;
        tensors come back as arrays. For other processes it is pickled: with cloudpickle, where that is installed (Dask
        and Ray have it), any function will do; else it has to be at the top level of a module.
      executor: As for `backward`.
      chunk: As for `backward`.
      work: As for `backward`. Results are computed anew if `question` has changed, or a function, class, module
        or value that it refers to, and always if it refers to something that cannot be pickled, such as a lock; for a
        change elsewhere, give a new folder.
      on_error: As for `backward`; a `Failure` stands for the result of a tape that failed.
      duplicates: As for `backward`.
      progress: As for `backward`.
      load: As for `backward`.

    Raises:
      NoTapesError: If there are no such tapes.
      FarmError: If a tape fails or is given twice, if all fail, or if workers were lost.
      TypeError: If the function has to be pickled and cannot.

    >>> import os, tempfile
    >>> folder, w = tempfile.mkdtemp(), tf.Variable(2.0, name="w")
    >>> for step in range(3):
    ...     with rt.Tape() as tape:
    ...         loss = w ** 2 * float(step)
    ...     _ = tape.save(os.path.join(folder, f"{step}.tape"), loss=loss)
    >>> curvatures = rt.farm.map(os.path.join(folder, "*.tape"), lambda tape: tape.hessian("loss", "w"))
    >>> [float(value) for value in curvatures]
    [0.0, 2.0, 4.0]
    """
    questions.check(question)
    options = checked_options(executor, chunk, work, on_error, progress, load)
    tapes = tapes_in(paths, duplicates)

    def run(work: Work) -> Results:
        job = Job(load=options.load, stop=options.stop, **_sent(question, options, work))
        return _results(job, digest("map", _told_apart(question, options)), tapes, options, work)

    return _in_folder(options, run)


def replay(
    tape: Any,
    dataset: Any,
    question: Callable[[Any], Any],
    *,
    trust: bool = False,
    executor: Any = None,
    chunk: int = CHUNK,
    work: Path | None = None,
    on_error: Literal["stop", "continue"] = "stop",
    progress: bool | None = None,
    load: Mapping[str, Any] | None = None,
) -> Results:
    """Return the result of a function for a tape replayed with each of many inputs, for example per-example gradients.

    Args:
      tape: A path, or a loaded tape.
      dataset: Mappings from names on the tape to new values: a list or any other iterable, or a `tf.data.Dataset` of
        dictionaries.
      question: As for `map`; it gets `tape.replay(element)`.
      trust: As for `tape.replay`.
      executor: As for `backward`.
      chunk: How many elements make one unit of work.
      work: As for `map`.
      on_error: As for `map`, for elements that fail.
      progress: As for `backward`.
      load: As for `backward`.

    Raises:
      NoTapesError: If there is no such tape, or no element.
      FarmError: If an element fails, if all fail, or if workers were lost.
      TypeError: If the function has to be pickled and cannot.

    >>> import os, tempfile
    >>> w, x = tf.Variable(2.0, name="w"), tf.constant(1.0)
    >>> with rt.Tape() as tape:
    ...     loss = (w * x) ** 2
    >>> path = os.path.join(tempfile.mkdtemp(), "model.tape")
    >>> _ = tape.save(path, x=x, loss=loss)
    >>> grads = rt.farm.replay(path, [{"x": 1.0}, {"x": 3.0}], lambda tape: tape.gradient("loss", "w"))
    >>> [float(grad) for grad in grads]
    [4.0, 36.0]
    """
    questions.check(question)
    options = checked_options(executor, chunk, work, on_error, progress, load)

    def run(work: Work) -> Results:
        shares = options.way.shares_memory
        replayed, content = replayed_tape(tape, shares, options.load, work.path)
        sent = _sent(question, options, work)
        job = Job(load=options.load, stop=options.stop, replayed=replayed, trust=trust, **sent)
        told = _told_apart(question, options) if content else uuid.uuid4().hex
        what = digest("replay", job.versions, content, trust, plain(options.load), told)
        try:
            tasks = input_tasks(job, what, dataset, options.chunk, work.path, not shares)
            done = drive(tasks, options.way, work, options.progress, "elements")
        finally:
            if replayed is not tape and hasattr(replayed, "close"):
                replayed.close()  # an isolated tape that was loaded here
        remove_inputs(tasks)
        return Results(done, options.chunk, work)

    return _in_folder(options, run)


# ------------------------------------------------------------------ one farm


def _in_folder(options: Options, run: Callable[[Work], _Found]) -> _Found:
    """Run with the folder of partial results; a temporary one is removed, unless results are still in it."""
    work = Work(options.work)
    found = None
    try:
        found = run(work)
        return found
    finally:
        if not isinstance(found, Results):
            work.remove()


def _total(job: Job, tapes: list[str], options: Options, work: Work, mean: bool) -> Total:
    what = digest("sum", job.versions, job.query, plain(options.load))
    tasks = tape_tasks(job, what, items_of(tapes, options.stop), options.chunk, work.path)
    done = drive(tasks, options.way, work, options.progress, "tapes")
    sums, failures = Sums(), Failures()
    for task, content in contents(done):
        others = sums.merge_all(content["sums"], [item.name for item in task.items], options.stop)
        failures.add(task, {**content["failed"], **others})
    failures.raise_if_all(done.what)
    return Total(sums.pairs(sums.count if mean else 1), sums.reasons(), sums.count, failures.texts)


def _results(job: Job, what: str, tapes: list[str], options: Options, work: Work) -> Results:
    what = digest(what, job.versions, plain(options.load))
    tasks = tape_tasks(job, what, items_of(tapes, options.stop), options.chunk, work.path)
    return Results(drive(tasks, options.way, work, options.progress, "tapes"), options.chunk, work)


def _sent(question: Callable[[Any], Any], options: Options, work: Work) -> dict[str, Any]:
    """Return the fields of the job that hold the function: itself, or the file that it is in."""
    if options.way.shares_memory:
        return {"question": question}
    return {"question_file": questions.save(question, work.path), "references": references(question)}


def _told_apart(question: Callable[[Any], Any], options: Options) -> str:
    """Return what tells results in a folder from those of other functions; a temporary folder has no others."""
    return uuid.uuid4().hex if options.work is None else fingerprint(question)
