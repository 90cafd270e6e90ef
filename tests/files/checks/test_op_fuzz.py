"""No op that a tape may name ends the process, takes much memory, or raises a foreign error, whatever it is given.

The sample takes under a minute; the slow test, all 60 cases of every op, about ten minutes on two cores.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from files.checks.op_fuzz import Report, fuzz
from retrotape.ir import OWN_OPS
from retrotape.rules import allowed

OPS = sorted(allowed() - OWN_OPS)


def check(found: Report) -> None:
    assert not found.faults, "\n".join(found.faults)


def test_some_cases_of_every_op():
    found = fuzz(OPS, 3, seed=0)
    check(found)
    assert found.outcomes["value"] > len(OPS)  # or nothing would have run
    assert found.outcomes["gradient"] > len(OPS) / 2


def test_a_kernel_that_ends_the_process_is_found():
    """Without its guard RFFT does, and the cases behind the one that did still run."""
    found = fuzz(["RFFT"], 40, seed=1, trust=True)
    assert any("RFFT" in fault and "SIGABRT" in fault for fault in found.faults)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_all_cases_of_every_op(seed):
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda shard: fuzz(OPS[shard::2], 60, seed), range(2)):
            check(found)
            assert found.outcomes["value"] > 20 * len(OPS) / 2
