"""What is wrong with the gradients of a step, as text for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape.errors import printable
from retrotape.grads import Gradients, elements, name_of
from retrotape.tf.core import tf

_EXPLAINED = 5  # gradients of each kind that are explained, which takes a walk each; the others are only named
_NAMED = 50


def findings(tape: Any, loss: Any, grads: Gradients, nonfinite: bool) -> str:
    """Return what is wrong with the gradients of a loss, as Markdown; "" if nothing is.

    Args:
      tape: The tape, to explain it.
      loss: The loss.
      grads: Its gradients.
      nonfinite: Whether the loss or one of the gradients is not finite.
    """
    zero = [key for key, grad in grads.items() if grad is not None and not bool(tf.reduce_any(elements(grad) != 0.0))]
    parts = _explained(tape, loss, grads.missing, "has no gradient", "have no gradient")
    parts += _explained(tape, loss, zero, "has a gradient of zeros", "have a gradient of zeros")
    first = tape.first_nonfinite(loss) if nonfinite else None
    if first is not None:
        parts += ["**The first non-finite value:**", _verbatim(str(first))]
    return "\n\n".join(parts)


def _explained(tape: Any, loss: Any, keys: Sequence[Any], one: str, several: str) -> list[str]:
    if not keys:
        return []
    rest = [name_of(key) for key in keys[_EXPLAINED:]]
    parts = [f"**{len(keys)} {'variable ' + one if len(keys) == 1 else 'variables ' + several}:**"]
    parts += [_verbatim(f"{name_of(key)}\n{tape.why(loss, key)}") for key in keys[:_EXPLAINED]]
    if rest:
        more = [f"… {len(rest) - _NAMED} more"] if len(rest) > _NAMED else []
        parts.append(_verbatim("\n".join(["and:", *rest[:_NAMED], *more])))
    return parts


def _verbatim(text: str) -> str:
    """Return text as a block of code, in which nothing is Markdown or HTML."""
    return "\n".join(f"    {printable(line)}" for line in text.splitlines())
