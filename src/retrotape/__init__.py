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
    from retrotape import errors as errors
    from retrotape.accumulation import Accumulated as Accumulated
    from retrotape.accumulation import accumulate as accumulate
    from retrotape.finding import Tensors as Tensors
    from retrotape.grads import Gradients as Gradients
    from retrotape.installing import install as install
    from retrotape.installing import installed as installed
    from retrotape.installing import uninstall as uninstall
    from retrotape.ir import Program as Program
    from retrotape.isolated import Confinement as Confinement
    from retrotape.isolated import IsolatedTape as IsolatedTape
    from retrotape.joined import JoinedTape as JoinedTape
    from retrotape.joined import join as join
    from retrotape.loaded import LoadedTape as LoadedTape
    from retrotape.loaded import load as load
    from retrotape.memory import Memory as Memory
    from retrotape.nonfinite import Cause as Cause
    from retrotape.nonfinite import Nonfinite as Nonfinite
    from retrotape.parallel import backward_all as backward_all
    from retrotape.summary import Summary as Summary
    from retrotape.tape import GradientTape as GradientTape
    from retrotape.tape import Tape as Tape
    from retrotape.why import Explanation as Explanation
    from retrotape.why import Verdict as Verdict

_HOMES = {
    "Accumulated": "retrotape.accumulation",
    "Cause": "retrotape.nonfinite",
    "Confinement": "retrotape.isolated",
    "Gradients": "retrotape.grads",
    "Explanation": "retrotape.why",
    "GradientTape": "retrotape.tape",
    "IsolatedTape": "retrotape.isolated",
    "JoinedTape": "retrotape.joined",
    "LoadedTape": "retrotape.loaded",
    "Memory": "retrotape.memory",
    "Nonfinite": "retrotape.nonfinite",
    "Program": "retrotape.ir",
    "Summary": "retrotape.summary",
    "Tape": "retrotape.tape",
    "Tensors": "retrotape.finding",
    "Verdict": "retrotape.why",
    "accumulate": "retrotape.accumulation",
    "backward_all": "retrotape.parallel",
    "errors": "retrotape.errors",
    "install": "retrotape.installing",
    "installed": "retrotape.installing",
    "join": "retrotape.joined",
    "load": "retrotape.loaded",
    "uninstall": "retrotape.installing",
}

__all__ = [
    "Accumulated",
    "Cause",
    "Confinement",
    "Explanation",
    "GradientTape",
    "Gradients",
    "IsolatedTape",
    "JoinedTape",
    "LoadedTape",
    "Memory",
    "Nonfinite",
    "Program",
    "Summary",
    "Tape",
    "Tensors",
    "Verdict",
    "__version__",
    "accumulate",
    "backward_all",
    "errors",
    "install",
    "installed",
    "join",
    "load",
    "uninstall",
]


if not TYPE_CHECKING:  # to a type checker every name would be one of ours

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'retrotape' has no attribute {name!r}")
        module = import_module(home)
        value = module if name == "errors" else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
