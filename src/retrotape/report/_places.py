"""Where ops ran: in which call of a Keras layer, or outside of layers, on which line; and what each place returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from retrotape.diagnose.layers import Layer, Layers
from retrotape.ir import LEAF, Frame
from retrotape.record import TRAINABLE, Trace
from retrotape.report._data import NO_PLACE, Place


class Places:
    """The places of a trace, in the order in which they first ran; a place comes after the one that it is part of.

    Attributes:
      of: The number of the innermost place, for each equation.
      outer: The number of the place that each is part of, or `NO_PLACE`.
      outputs: The var that each place returned, None if there is no single one.
    """

    def __init__(self, trace: Trace, targets: Sequence[int] = ()) -> None:
        self._trace = trace
        self._numbers: dict[Layer | Frame, int] = {}
        self._keys: list[Layer | Frame] = []
        self.outer: list[int] = []
        layers = Layers(trace, guess=not trace.facts.layer_calls)
        frames = trace.program.frames
        self.of = [
            self._number(layer if layer.path else frames[eqn.frame])
            for eqn, layer in zip(trace.program.eqns, layers.of, strict=True)
        ]
        self.outputs: list[int | None] = [None] * len(self._keys)
        for number, var in self._exported(targets):
            self.outputs[number] = var
        for layer, scope in layers.called:
            returned = trace.tensors.get(scope.returned)
            if layer in self._numbers and returned is not None:
                self.outputs[self._numbers[layer]] = returned

    def __len__(self) -> int:
        return len(self._keys)

    def _number(self, key: Layer | Frame) -> int:
        known = self._numbers.get(key)
        if known is None:
            outer = self._number(key.outer) if isinstance(key, Layer) and key.outer is not None else NO_PLACE
            known = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self.outer.append(outer)
        return known

    def chain(self, number: int) -> Iterator[int]:
        """Yield a place and those that it is part of, innermost first."""
        while number != NO_PLACE:
            yield number
            number = self.outer[number]

    def depth(self, number: int) -> int:
        """Return how many places a place is part of."""
        return sum(1 for _ in self.chain(number)) - 1

    def _exported(self, targets: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the differentiable vars of each place that ops elsewhere use, or that are a target; later ones last."""
        program = self._trace.program
        users: dict[int, set[int]] = {var: {NO_PLACE} for var in targets}
        for eqn, place in zip(program.eqns, self.of, strict=True):
            for var in eqn.inputs:
                if program.producers[var] != LEAF and self.of[program.producers[var]] != place:
                    users.setdefault(var, set()).add(place)
        for var in sorted(users):
            maker = program.producers[var]
            if maker == LEAF or not self._flows(var):
                continue
            for user in users[var]:
                inside = set(self.chain(user))
                yield from ((one, var) for one in self.chain(self.of[maker]) if one not in inside)

    def _flows(self, var: int) -> bool:
        return self._trace.program.types[var].dtype in TRAINABLE and var not in self._trace.facts.history_of

    def described(self, sizes: dict[int, int]) -> tuple[Place, ...]:
        """Return the places as data; `sizes` are the bytes of the vars that are kept."""
        program = self._trace.program
        ops, kept = [0] * len(self), [0] * len(self)
        for eqn, place in zip(program.eqns, self.of, strict=True):
            held = sum(sizes.get(var, 0) for var in eqn.outputs)
            for one in self.chain(place):
                ops[one] += 1
                kept[one] += held
        calls = Counter(key.path for key in self._keys if isinstance(key, Layer) and key.call)
        found = []
        for number, key in enumerate(self._keys):
            output = self.outputs[number]
            is_layer = isinstance(key, Layer)
            found.append(
                Place(
                    name=key.path if isinstance(key, Layer) else str(key),
                    is_layer=is_layer,
                    call=key.call if isinstance(key, Layer) else 0,
                    calls=calls[key.path] if isinstance(key, Layer) else 1,
                    outer=self.outer[number],
                    depth=self.depth(number),
                    ops=ops[number],
                    output="" if output is None else str(program.types[output]),
                    bytes=kept[number],
                )
            )
        return tuple(found)
