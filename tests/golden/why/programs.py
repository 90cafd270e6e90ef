"""Programs that people really wrote and could not explain, by what is wrong.

The line that is to blame ends in `# here`, so that a test can find it.
"""

from __future__ import annotations

from golden.why import (
    left_tensorflow,
    no_gradient,
    no_mistake,
    not_recorded,
    stopped,
    updates,
    zero,
)
from golden.why.registry import PROGRAMS

MODULES = (left_tensorflow, no_gradient, stopped, not_recorded, updates, zero, no_mistake)

__all__ = ["MODULES", "PROGRAMS"]
