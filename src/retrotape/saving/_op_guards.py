"""What has to hold before the kernel of an op, or of its gradient, runs: where TensorFlow checks too little.

Each entry says for which ops, what is wrong where a call has it, and in a comment what the kernel does then. The op
fuzz (`tests/saving/op_fuzz.py`) finds such kernels; each of these ended the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retrotape.saving._call import Call
from retrotape.saving._lists import TAKES_LIST

Guard = Callable[[Call], str | None]


def _fft_length(call: Call) -> str | None:
    # A length of 0 fails a CHECK on the shape of the result.
    return "a length that is not above 0" if min(call.numbers(1), default=1) <= 0 else None


def _channels(call: Call) -> str | None:
    # The kernel looks at the last dimension before it asks whether there is one.
    if call.rank(-3) < 1:
        return "a scalar, which has no channels"
    return None


def _one_list(call: Call) -> str | None:
    return "a tensor of lists, where it takes one list" if call.rank(0) else None


GUARDS: Mapping[str, Guard] = {
    **dict.fromkeys((f"{i}RFFT{n}" for i in ("", "I") for n in ("", "2D", "3D")), _fft_length),
    "FakeQuantWithMinMaxVarsPerChannel": _channels,
    "FakeQuantWithMinMaxVarsPerChannelGradient": _channels,
    **dict.fromkeys(sorted(TAKES_LIST), _one_list),
}
