"""Which random programs a law tries: a few in `make test`, many in `make test-all`, where every day has others."""

from __future__ import annotations

import os

# A date, as 20261118: its tests are repeated by setting it again.
DATE = int(os.environ.get("RETROTAPE_SEEDS") or 0)


def seeds(few: int = 8, many: int = 24) -> list[int]:
    """Return the seeds for this run: those of `few` are always among them."""
    return [*range(many), *(DATE * 100 + number for number in range(many))] if DATE else [*range(few)]
