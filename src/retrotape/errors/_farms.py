"""Errors about farms of tapes, and about packages that only some features need."""

from __future__ import annotations

from collections.abc import Mapping

from retrotape.errors._base import RetrotapeError, without_controls


class FarmError(RetrotapeError, RuntimeError):
    """A farm could not finish; `failed` has the error of each tape that is known to have failed."""

    def __init__(self, problem: str, remedy: str, failed: Mapping[str, str] | None = None) -> None:
        self.problem, self.failed = problem, dict(failed or {})
        end = "" if problem.endswith((".", "?", "!")) else "."  # it may quote another error
        super().__init__(f"{problem}{end} {remedy}")


class ProcessDiedError(RetrotapeError, RuntimeError):
    """A process died while it computed one item of a farm, alone and after repeated attempts."""

    def __init__(self) -> None:
        super().__init__(
            "The process that computed it was killed or crashed, also when it was the only one. It may need more "
            "memory than there is; in this process, `executor=None`, a crash shows where."
        )


class SharedNameError(RetrotapeError, ValueError):
    """Variables on one tape have the same name, so a sum over tapes could not tell them apart."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"Several variables on this tape are called {name!r}, and a sum over tapes could not tell them apart. Give "
            'variables names before you record, `tf.Variable(..., name="scale")`, or name them in the file, '
            '`tape.save(path, names={"scale": variable})`, and list those names: `wrt=["scale"]`.'
        )


class NoTapesError(RetrotapeError, FileNotFoundError):
    """There is no tape under a path or a pattern."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. {remedy}")

    def __str__(self) -> str:
        return without_controls(str(self.args[0]))  # OSError has a text of its own


class MissingPackageError(RetrotapeError, ImportError):
    """A package is not installed that only this feature needs."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.package = package
        super().__init__(f'{feature} needs {package}, which is not installed: `pip install "retrotape[{extra}]"`.')
