"""What a report takes gradients of: what the user gave; otherwise `diagnose/losses.py` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrotape.diagnose.losses import Chosen, Find

GIVEN = "given to `report`"
ADVICE = (
    "The gradient flow is missing: no tensor is called 'loss', and no op made a floating-point scalar that no other op "
    "used. Say what to differentiate: `tape.report(path, loss=loss)`, or `losses={'a': a, 'b': b}`."
)


def given_losses(loss: Any, losses: Any, resolve: Callable[[Any], Any], find: Find) -> list[Chosen]:
    """Return the losses that the user gave.

    Args:
      loss: One of them, or None.
      losses: Several, or None.
      resolve: Returns what a name refers to, and anything else unchanged.
      find: Returns the vars of a loss.
    """
    if loss is not None and losses is not None:
        raise TypeError("report takes loss= or losses=, got both; give several as `losses={'a': a, 'b': b}`.")
    if loss is not None:
        target = resolve(loss)
        return [Chosen(loss if isinstance(loss, str) else "loss", target, find(target), GIVEN)]
    if losses is None:
        return []
    if not isinstance(losses, (Mapping, list, tuple)) or not losses:
        raise TypeError(f"losses= takes names and losses, `{{'a': a, 'b': b}}`, or a list of them; got {losses!r:.60}.")
    named = losses if isinstance(losses, Mapping) else {_name(one, n): one for n, one in enumerate(losses)}
    targets = {str(name): resolve(one) for name, one in named.items()}
    return [Chosen(name, one, find(one), GIVEN) for name, one in targets.items()]


def _name(loss: Any, number: int) -> str:
    return loss if isinstance(loss, str) else f"loss {number}"
