"""A gradient tape that is asked afterwards.

    import retrotape as rt

    with rt.Tape() as tape:
        loss = loss_fn(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)

Names are looked up when they are first used, so that `import retrotape` costs nothing where TensorFlow is not
needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from retrotape._version import __version__

if TYPE_CHECKING:
    from retrotape import aggregate as aggregate
    from retrotape import callbacks as callbacks
    from retrotape import errors as errors
    from retrotape.aggregate import Combined as Combined
    from retrotape.aggregate import Rows as Rows
    from retrotape.callbacks.flight.recorder import Crash as Crash
    from retrotape.callbacks.flight.recorder import FlightRecorder as FlightRecorder
    from retrotape.diagnose.memory import Memory as Memory
    from retrotape.diagnose.nonfinite import Cause as Cause
    from retrotape.diagnose.nonfinite import Nonfinite as Nonfinite
    from retrotape.diagnose.summary import Summary as Summary
    from retrotape.diagnose.tensors import Tensors as Tensors
    from retrotape.diagnose.why import Explanation as Explanation
    from retrotape.diagnose.why import Verdict as Verdict
    from retrotape.distribute import farm as farm
    from retrotape.files import store as store
    from retrotape.files.isolated import Confinement as Confinement
    from retrotape.grads import Gradients as Gradients
    from retrotape.ir import Program as Program
    from retrotape.record import config as config
    from retrotape.report import Report as Report
    from retrotape.tape import keras as keras
    from retrotape.tape.accumulate import Accumulated as Accumulated
    from retrotape.tape.accumulate import accumulate as accumulate
    from retrotape.tape.compiled import CompiledStep as CompiledStep
    from retrotape.tape.compiled import compile as compile
    from retrotape.tape.install import install as install
    from retrotape.tape.install import installed as installed
    from retrotape.tape.install import uninstall as uninstall
    from retrotape.tape.isolated import IsolatedTape as IsolatedTape
    from retrotape.tape.joined import JoinedTape as JoinedTape
    from retrotape.tape.joined import join as join
    from retrotape.tape.live import GradientTape as GradientTape
    from retrotape.tape.live import Tape as Tape
    from retrotape.tape.loaded import LoadedTape as LoadedTape
    from retrotape.tape.loaded import load as load
    from retrotape.tape.parallel import backward_all as backward_all

_HOMES = {
    "Accumulated": "retrotape.tape.accumulate",
    "Cause": "retrotape.diagnose.nonfinite",
    "Combined": "retrotape.aggregate",
    "CompiledStep": "retrotape.tape.compiled",
    "Confinement": "retrotape.files.isolated",
    "Crash": "retrotape.callbacks.flight.recorder",
    "FlightRecorder": "retrotape.callbacks.flight.recorder",
    "Gradients": "retrotape.grads",
    "Explanation": "retrotape.diagnose.why",
    "GradientTape": "retrotape.tape.live",
    "IsolatedTape": "retrotape.tape.isolated",
    "JoinedTape": "retrotape.tape.joined",
    "LoadedTape": "retrotape.tape.loaded",
    "Memory": "retrotape.diagnose.memory",
    "Nonfinite": "retrotape.diagnose.nonfinite",
    "Program": "retrotape.ir",
    "Rows": "retrotape.aggregate",
    "Report": "retrotape.report",
    "Summary": "retrotape.diagnose.summary",
    "Tape": "retrotape.tape.live",
    "Tensors": "retrotape.diagnose.tensors",
    "Verdict": "retrotape.diagnose.why",
    "accumulate": "retrotape.tape.accumulate",
    "aggregate": "retrotape.aggregate",
    "backward_all": "retrotape.tape.parallel",
    "callbacks": "retrotape.callbacks",
    "compile": "retrotape.tape.compiled",
    "config": "retrotape.record",
    "errors": "retrotape.errors",
    "farm": "retrotape.distribute.farm",
    "install": "retrotape.tape.install",
    "installed": "retrotape.tape.install",
    "join": "retrotape.tape.joined",
    "keras": "retrotape.tape.keras",
    "load": "retrotape.tape.loaded",
    "store": "retrotape.files.store",
    "uninstall": "retrotape.tape.install",
}

__all__ = [
    "Accumulated",
    "Cause",
    "Combined",
    "CompiledStep",
    "Confinement",
    "Crash",
    "Explanation",
    "FlightRecorder",
    "GradientTape",
    "Gradients",
    "IsolatedTape",
    "JoinedTape",
    "LoadedTape",
    "Memory",
    "Nonfinite",
    "Program",
    "Report",
    "Rows",
    "Summary",
    "Tape",
    "Tensors",
    "Verdict",
    "__version__",
    "accumulate",
    "aggregate",
    "backward_all",
    "callbacks",
    "compile",
    "config",
    "errors",
    "farm",
    "install",
    "installed",
    "join",
    "keras",
    "load",
    "store",
    "uninstall",
]


if not TYPE_CHECKING:  # to a type checker every name would be one of ours

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'retrotape' has no attribute {name!r}")
        module = import_module(home)
        value = (
            module if name in ("aggregate", "callbacks", "errors", "farm", "keras", "store") else getattr(module, name)
        )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
