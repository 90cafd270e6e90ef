"""Whether TensorFlow is as it was before anything recorded."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, execute

import retrotape as rt
from retrotape.record import current_stack
from retrotape.tf import hook_table, hooks
from retrotape.tf.hooks_ops import thread


def hooked() -> list[Any]:
    """Return everything of TensorFlow that recording may replace, as it is now."""
    return [vars(owner)[name] if name in vars(owner) else getattr(owner, name) for owner, name, _ in hooks._HOOKS]


with rt.Tape():
    pass  # from then on there are hooks for Keras too
UNTOUCHED = hooked()
ORIGINALS = [(owner, name, getattr(owner, name)) for owner, name, _ in hooks._HOOKS]


def is_untouched() -> bool:
    return (
        all(now is then for now, then in zip(hooked(), UNTOUCHED, strict=True)) and not context.context().op_callbacks
    )


def touched() -> list[str]:
    """Return what is not as it was: of TensorFlow, and of what this thread is told."""
    found = [name for owner, name, before in ORIGINALS if getattr(owner, name) is not before]
    stack = current_stack()
    checks = {
        "callbacks": bool(context.context().op_callbacks),
        "users": bool(hook_table.users),
        "listener": thread.listener is not None,
        "past": thread.past is not None,
        "graph sessions": bool(thread.graph_sessions),
        "recomputed": thread.keeps_recomputed,
        "stock tape": execute.must_record_gradient() or not pywrap_tfe.TFE_Py_TapeSetIsEmpty(),
        "stopped": pywrap_tfe.TFE_Py_TapeSetIsStopped(),
        "open": bool(stack._open or stack.active),
        "graph": not tf.executing_eagerly(),
    }
    return found + [name for name, is_so in checks.items() if is_so]
