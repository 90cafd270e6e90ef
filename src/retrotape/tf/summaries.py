"""The settings of `tf.summary`: where summaries are written, whether, and for which step."""

from __future__ import annotations

from typing import Any

from retrotape.tf.core import summary_ops_v2


def settings() -> list[tuple[dict[str, Any], str]]:
    """Return the settings of this thread: each as a namespace, and a name there."""
    own = vars(summary_ops_v2._summary_state)
    return [(own, name) for name in ("is_recording", "step", "writer")]
