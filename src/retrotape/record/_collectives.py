"""Collectives of a function that is run op by op: the nodes of all replicas together are one step.

Where all members of a group are in this process, nothing has to be communicated: the collective is the sum, or the
concatenation, of their values. Otherwise the collective runs, so that other processes, which call the same function,
meet it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from retrotape._types import Place, Tensor
from retrotape.errors import ReplicaError
from retrotape.record._bodies import Step
from retrotape.record._runner import Runner
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.replicas import device_rank, on_device, spans_processes


def is_collective(op: str) -> bool:
    """Return whether an op communicates between replicas."""
    return op.startswith("Collective")


class Member:
    """One node of a collective, which waits for the others.

    Attributes:
      step: The node.
      inputs: Its inputs.
      place: Where it stands in the user's code.
      outputs: Its results, once the collective has run.
    """

    def __init__(self, step: Step, inputs: list[Tensor], place: Place) -> None:
        self.step, self.inputs, self.place = step, inputs, place
        self.outputs: list[Tensor] | None = None
        self._attrs: dict[str, Any] = dict(zip(step.attrs[::2], step.attrs[1::2], strict=True))

    @property
    def device(self) -> str:
        """The device of the replica."""
        return self.step.spec.device

    @property
    def size(self) -> int:
        """The number of members in all processes."""
        return self._number("group_size", 1)

    @property
    def key(self) -> tuple[str, int, int]:
        """What the members of one collective have in common."""
        return self._family(), self._number("group_key", 2), self._number("instance_key", 3)

    @property
    def kind(self) -> str:
        """SUM, MEAN or GATHER; otherwise the name of the op."""
        if self.step.op in ("CollectiveGather", "CollectiveGatherV2"):
            return "GATHER"
        merged, last = (self._attrs.get(name, b"") for name in ("merge_op", "final_op"))
        reduces = self.step.op in ("CollectiveReduce", "CollectiveReduceV2") and merged == b"Add"
        return {b"Id": "SUM", b"Div": "MEAN"}.get(last, self.step.op) if reduces else self.step.op

    def _family(self) -> str:
        """Return the name of the op; both sides of a broadcast have one."""
        return self.step.op.replace("Send", "").replace("Recv", "")

    def _number(self, name: str, position: int) -> int:
        if name in self._attrs:  # the first version of the ops has attributes
            return int(self._attrs[name])
        shift = -1 if "Recv" in self.step.op else 0  # which takes no value
        return int(self.inputs[position + shift])

    def run(self) -> list[Tensor]:
        """Run the op, which waits for the other members."""
        with on_device(self.device):
            return core.run(self.step.op, self.inputs, self.step.attrs, len(self.step.outputs))


def meet(stack: Runner, waiting: Iterable[Member]) -> None:
    """Run the collectives whose members all wait; if there is none, the one that waits for other processes."""
    groups: dict[tuple[str, int, int], list[Member]] = {}
    for member in waiting:
        groups.setdefault(member.key, []).append(member)
    whole = [members for members in groups.values() if len(members) == members[0].size]
    if not whole:
        first = next(iter(groups.values()))
        if not spans_processes():
            raise ReplicaError(
                f"{first[0].step.op} in a tf.function was reached by {len(first)} of {first[0].size} replicas",
                "Make all replicas take the same branch: `tf.cond` on a value that is the same in all of them.",
            )
        whole = [first]
    for members in whole:
        _run_together(stack, sorted(members, key=lambda member: device_rank(member.device)))


def _run_together(stack: Runner, members: Sequence[Member]) -> None:
    first = members[0]
    stack.place = first.place
    if "Bcast" in first.step.op:  # recorded as such: one member of each process sends or receives
        for member in members:
            member.outputs = member.run()
        return
    given = [member.inputs[0] for member in members]
    if len(members) == first.size and first.kind in ("SUM", "MEAN", "GATHER"):
        results: Sequence[Tensor] = [_computed(first.kind, member, given) for member in members[:1]]
        results = [*results, *(_copied(results[0], member) for member in members[1:])]
    else:
        results = stack.on_collective(first.kind, first.size, given, lambda: _communicated(members))
    for member, result in zip(members, results, strict=True):
        member.outputs = [result][: len(member.step.outputs)]


def _computed(kind: str, member: Member, given: list[Tensor]) -> Tensor:
    """Return what the collective returns, by ordinary ops, which are recorded."""
    with on_device(member.device):
        if kind == "GATHER":
            return tf.concat(given, 0)
        total = tf.raw_ops.AddN(inputs=given)
        return total if kind == "SUM" else total / tf.cast(len(given), total.dtype)


def _copied(result: Tensor, member: Member) -> Tensor:
    with on_device(member.device):
        return tf.identity(result)


def _communicated(members: Sequence[Member]) -> list[Tensor]:
    """Run the collective: all local members at once, each on a thread, since each waits for the others."""
    if len(members) == 1:
        return [_first(members[0].run())]
    with ThreadPoolExecutor(len(members)) as pool:
        return [_first(outputs) for outputs in pool.map(Member.run, members)]


def _first(outputs: list[Tensor]) -> Any:
    return outputs[0] if outputs else None
