"""An isolated tape: a proxy that sends every query to the process that holds an untrusted tape."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from retrotape import _html, errors
from retrotape._types import Tensor
from retrotape.errors import IsolationError
from retrotape.files.isolated import Confinement, Process, add_kind
from retrotape.grads import Gradients, in_order
from retrotape.report import Report
from retrotape.tape._base import AnyTape
from retrotape.tape._show import names_as_html
from retrotape.tf.core import tf

if TYPE_CHECKING:
    from retrotape.diagnose.nonfinite import Nonfinite
    from retrotape.diagnose.summary import Summary
    from retrotape.diagnose.tensors import Tensors
    from retrotape.diagnose.why import Explanation
    from retrotape.files.store import Limits
    from retrotape.grads import Gradients
    from retrotape.ir import Program
    from retrotape.tf.version import Version

_Method = TypeVar("_Method", bound=Callable[..., Any])

# Methods that a loaded tape has and an isolated one has not, with the reason.
REFUSED = {
    "save": "its process cannot write files; copy the file that it was loaded from",
    "export_saved_model": "its process cannot write files",
    "export_graph": "its process cannot write files",
    "log": "its process cannot write files; log `tape.backward('loss').metrics()` instead",
    "plot": "its report is plotted here: `tape.report().plot()`",
    "compile": "what it computes stays in its process; compile a tape that is loaded here",
}


add_kind(Report, "report", lambda one: [one.to_json()], Report.from_json)


def _elsewhere(method: _Method) -> _Method:
    """Return a method that sends the query to the other process, after checking the signature here."""
    signature = inspect.signature(getattr(AnyTape, method.__name__, method))

    @wraps(method)
    def query(self: IsolatedTape, *args: Any, **options: Any) -> Any:
        given = signature.bind(self, *args, **options)
        for name in ("tangents", "vectors"):
            if isinstance(given.arguments.get(name), Gradients):
                keys = [
                    self[key] if isinstance(key, str) else key for key in tf.nest.flatten(given.arguments["sources"])
                ]
                given.arguments[name] = in_order(given.arguments[name], keys)
        return self._query(method.__name__, given.args[1:], given.kwargs)

    query.__signature__ = signature  # type: ignore[attr-defined]
    return cast(_Method, query)


class IsolatedTape:
    """A loaded tape in another process; `rt.load(path, isolate=True)` makes it.

    It supports the queries of a loaded tape, with the same results. What it returns (tensors, variables, values from
    `at`, gradients) can be used in the next query. Only `save`, the exports and `compile` are refused: its process
    cannot write files, and what it computes stays there. `plot` is that of its report.

    Use it in a `with` block, or close it.
    """

    def __init__(self, process: Process, names: Iterable[str], equations: int, number: int) -> None:
        self._process, self._number, self._equations = process, number, equations
        self._names = tuple(map(str, names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of tensors and variables on this tape."""
        return self._names

    @property
    def confinement(self) -> Confinement:
        """How its process is confined, as far as the system supports it."""
        return self._process.confinement

    @_elsewhere
    def gradient(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """Return the gradients of a target with respect to sources, as `Tape.gradient` does."""

    @_elsewhere
    def backward(self, loss: Any, wrt: Any = None, *args: Any, **options: Any) -> Gradients:  # type: ignore[empty-body]
        """Return the gradient of a loss as a vector, as `Tape.backward` does."""

    @_elsewhere
    def gramian(self, losses: Any, wrt: Any = None) -> Any:
        """Return the inner products of the gradients of several losses, as `Tape.gramian` does."""

    @_elsewhere
    def backward_each(self, losses: Any, wrt: Any = None, **options: Any) -> Any:
        """Return the gradient of each of several losses, as `Tape.backward_each` does."""

    @_elsewhere
    def vjp(self, target: Any, sources: Any, cotangents: Any, **options: Any) -> Any:
        """Return the product of cotangents with the Jacobian, as `Tape.vjp` does."""

    @_elsewhere
    def jacobian(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """Return the Jacobian, as `Tape.jacobian` does."""

    @_elsewhere
    def batch_jacobian(self, target: Any, source: Any, *args: Any, **options: Any) -> Any:
        """Return the Jacobian of each row, as `Tape.batch_jacobian` does."""

    @_elsewhere
    def per_example(self, losses: Any, sources: Any, **options: Any) -> Any:
        """Return the gradient of each loss, as `Tape.per_example` does."""

    @_elsewhere
    def jvp(self, target: Any, sources: Any, tangents: Any, **options: Any) -> Any:
        """Return the directional derivative along tangents, as `Tape.jvp` does."""

    @_elsewhere
    def hvp(self, target: Any, sources: Any, vectors: Any, **options: Any) -> Any:
        """Return products with the Hessian, as `Tape.hvp` does."""

    @_elsewhere
    def hessian(self, target: Any, sources: Any, **options: Any) -> Any:
        """Return the Hessian, as `Tape.hessian` does."""

    def stream(
        self, loss: Any, wrt: Any = None, *, through_updates: bool = False, since: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield gradients as soon as they are complete, as `Tape.stream` does; each takes one message."""
        pairs = self._query("stream", (loss, wrt), {"through_updates": through_updates, "since": since})
        while (pair := self._send("next", self._process.number(pairs), doing="answered stream")) is not None:
            yield pair

    @_elsewhere
    def versions(self, variable: Any) -> tuple[Version, ...]:  # type: ignore[empty-body]
        """Return every value that a variable had, as `Tape.versions` does."""

    @_elsewhere
    def at(self, variable: Any, k: int) -> Version:  # type: ignore[empty-body]
        """Return value number `k` of a variable, as `Tape.at` does."""

    @_elsewhere
    def why(self, target: Any, source: Any, **options: Any) -> Explanation:  # type: ignore[empty-body]
        """Explain why a target has a gradient or none, as `Tape.why` does."""

    @_elsewhere
    def first_nonfinite(self, target: Any = None) -> Nonfinite | None:
        """Return the op that made the first NaN or infinity, as `Tape.first_nonfinite` does."""

    @_elsewhere
    def summary(self) -> Summary:  # type: ignore[empty-body]
        """Return what ran by layer and line, as `Tape.summary` does."""

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        loss: Any = None,
        losses: Any = None,
        title: str | None = None,
    ) -> Report:
        """Return what was recorded and what is wrong with it, as `Tape.report` does; the page is written here."""
        found = self._query("report", (), {"loss": loss, "losses": losses, "title": title})
        if path is not None:
            found.save(path)
        return found

    @_elsewhere
    def why_not_compiled(self) -> str | None:
        """Return why the last query ran op by op, as `Tape.why_not_compiled` does."""

    @_elsewhere
    def tensors(self, *args: Any, **options: Any) -> Tensors:  # type: ignore[empty-body]
        """Return the intermediate tensors, as `Tape.tensors` does."""

    @_elsewhere
    def value(self, tensor: Any) -> Tensor:
        """Return the value of a tensor or variable, as `Tape.value` does."""

    @_elsewhere
    def size(self, values: str = "leaves") -> int:  # type: ignore[empty-body]
        """Return about how many bytes `save` would write, as `Tape.size` does."""

    @_elsewhere
    def replay(  # type: ignore[empty-body]
        self, inputs: Mapping[str, Any] | Iterable[tuple[Any, Any]], *, resample: bool = False, trust: bool = False
    ) -> IsolatedTape:
        """Return a tape of the same program on other values, in the same process, as `Tape.replay` does."""

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables on this tape."""
        return self._send("read", self, "variables", doing="answered variables")

    @property
    def program(self) -> Program:
        """The program: everything that was recorded, in execution order."""
        return self._send("read", self, "program", doing="answered program")

    def __getitem__(self, name: str) -> Any:
        """Return the tensor or variable of that name, or the only one whose name ends with it."""
        if not isinstance(name, str):
            raise TypeError(f"Tensors of this tape are known by name: `tape['name']`; got {name!r}.")
        return self._query("__getitem__", (name,), {})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.names or sum(n.endswith("/" + name) for n in self.names) == 1)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.names)

    def __repr__(self) -> str:
        return f"<isolated tape: {self._equations} equations, {len(self.names)} names>"

    def _repr_html_(self) -> str:
        return _html.text(f"{self!r}\n{self.confinement}") + names_as_html(self.names)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says why a method of loaded tapes is missing."""
        if name not in REFUSED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"An isolated tape has no {name!r}: {REFUSED[name]}. If you trust the file, load it here: `rt.load(path)`."
        )

    def __reduce__(self) -> Any:
        raise TypeError("A tape is not pickled or copied. Elsewhere load its file: `rt.load(path, isolate=True)`.")

    def __enter__(self) -> IsolatedTape:
        """Return the tape itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process, and with it every replay in it."""
        self._process.close()

    def _query(self, method: str, args: Any, options: Any) -> Any:
        return self._send("query", self, method, list(args), dict(options), doing=f"answered {method}")

    def _send(self, what: str, *args: Any, doing: str) -> Any:
        found, raised = self._process.ask(what, *args, doing=doing)
        for category, text in raised:
            kind = getattr(errors, str(category), None)
            if isinstance(kind, type) and issubclass(kind, Warning):
                warnings.warn(str(text), kind, stacklevel=4)
        return found


def isolate(
    path: str | os.PathLike[str],
    memory: int,
    timeout: float,
    strict: bool,
    options: dict[str, Any],
    allow_ops: Collection[str],
    limits: Limits | None,
) -> IsolatedTape:
    """Load the tape in a file in a separate process, and return a proxy.

    Args:
      path: The file.
      memory: How many bytes the process may use beyond TensorFlow's own.
      timeout: How many seconds loading, and each query, may take.
      strict: Raise if the system cannot confine the process completely.
      options: As for `rt.load`.
      allow_ops: As for `rt.load`.
      limits: As for `rt.load`.
    """
    place = os.path.abspath(os.fsdecode(path))
    os.lstat(place)  # raises the usual error if there is no such file
    config = tf.config.threading
    threads = [config.get_intra_op_parallelism_threads(), config.get_inter_op_parallelism_threads()]
    known = None if limits is None else limits._asdict()
    process = Process(place, memory, timeout, {"threads": threads, "limits": known}, IsolatedTape)
    try:
        if strict and not process.confinement.is_complete:
            raise IsolationError(
                f"This system cannot confine the process completely: {process.confinement}",
                "To load the file nevertheless: `rt.load(path, isolate=True)`",
            )
        loading = {**options, "allow_ops": sorted(allow_ops), "limits": known}
        return process.ask("load", loading, doing="read the file")[0]
    except BaseException:
        process.close()
        raise
