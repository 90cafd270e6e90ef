"""The part of a recorder that follows an earlier program, and becomes a program of its own where it differs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from retrotape._types import Handle, Place, Tensor
from retrotape.ir import Builder, GrowingFacts, LayerCall, VariableHistory
from retrotape.record._follow import Follower
from retrotape.record._frames import FrameTable
from retrotape.record._histories import Histories
from retrotape.record._position import Passed, Position
from retrotape.record._run import Run
from retrotape.record._settings import settings
from retrotape.record._sites import Site, site_of
from retrotape.record._template import Template
from retrotape.record._tensors import TensorMap
from retrotape.tf.core import identity_of

MOST_VIEWS = 512  # of one program that is followed


class Following(Histories):
    """Follows the program that the same block recorded before.

    While the same ops run, `tensors` and `values` are filled as if they were recorded, and `program` and `facts` are
    not built. They are built when someone looks at them, and for good by the first op that differs; so nobody else
    notices.

    Attributes:
      waiting: Ops that have run and are not recorded yet.
    """

    waiting: Sequence[Any]

    @abstractmethod
    def _append_host_read(self, identity: int, time: int, place: Place, method: str, moment: int) -> None:
        """Add a host read to the program."""

    def clear(self) -> None:
        """Forget everything, in place."""
        self._follower: Follower | None = None
        self._site: Site | None = None
        self._opened_at: Site | None = None  # set if values are kept in segments
        self._rules_ran = False
        super().clear()

    def follow_at(self, place: Place) -> Site | None:
        """Follow the programs that the block at a place recorded before, if there are any and nothing is recorded."""
        is_empty = not self._builder.types and not self.tensors.by_identity
        if self.keep == "segments" and not self.symbolic:
            self._opened_at = site_of(place)
            return self._opened_at
        if settings.mode == "never" or self.keep != "needed" or self.symbolic or not is_empty:
            return None
        self._site = site = site_of(place)
        if site.templates:
            self._follower = Follower(self, site.templates[0], site.templates)
        return site

    def end_following(self) -> None:
        """End the block: remember its program, if it is new."""
        site, follower = self._site, self._follower
        self._site = None
        if site is None or self.damaged or self.waiting:
            return
        if follower is not None:
            follower.end()
        if follower is not None and follower.complete:
            self.template = follower.template
            site.used(follower.template)
        else:
            self.template = site.add(self)
            if self._rules_ran and self.template is not None:
                self.template.keep_needed()

    def on_rules(self) -> None:
        """Gradient rules are about to run, not a compiled function: they read values also in the next run."""
        self._rules_ran = True
        template = self.template if self._follower is None else self._follower.template
        if template is not None:
            template.keep_needed()

    def followed(self) -> Template | None:
        """Return the template that this trace equals, if it does so in whole."""
        follower = self._follower
        return follower.template if follower is not None and follower.complete else None

    def position(self) -> tuple[Template, Position] | None:
        """Return the template that this trace follows, and how far; None if it does not follow one."""
        follower = self._follower
        return None if follower is None or self.damaged else (follower.template, follower.position())

    def templates(self) -> list[Template]:
        """Return the templates that this trace may go on with, the followed one first."""
        return [] if self._follower is None else self._follower.candidates()

    def skip(self, template: Template, passed: Passed) -> None:
        """Go on in a template after ops that did not run: a compiled function has computed what they would have."""
        assert self._follower is not None
        try:  # as `whole` does
            self._follower.go_on_with(template)
            self._follower.skip(passed)
        except BaseException:
            self.damaged = True
            raise

    def run(self) -> Run | None:
        """Return what this trace has besides the template that it equals in whole, if it does so."""
        follower = self._follower
        if follower is None or self.waiting or self.damaged or not follower.complete:
            return None
        facts, slots, handles = self._builder.facts, follower.slots, follower.handles
        own = facts.times, follower.host_reads, facts.backward_functions, facts.moments, facts.layer_calls
        return Run(follower.template, self.values, self.tensors.by_identity, slots, handles, *own)

    def begin_with(self, run: Run) -> None:
        """Be the trace of a run, which is not recorded; its data pass to this trace."""
        facts = GrowingFacts(
            times=run.times,
            backward_functions=run.backward_functions,
            moments=run.moments,
            layer_calls=run.layer_calls,
        )
        self._build(Builder(frames=FrameTable(), facts=facts))
        self.values, self.tensors, self.template = run.values, TensorMap(run.tensors), run.template
        follower = Follower(self, run.template)
        follower.finish(run)
        self._follower = follower

    def calls(self) -> Mapping[int, Any]:
        """Return the function calls among the equations, without building the program."""
        return self._builder.facts.calls if self._follower is None else {}  # see `can_follow`

    def backward_functions(self) -> Mapping[int, Any]:
        """Return the backward functions of equations, without building the program."""
        return self._builder.facts.backward_functions

    def build(self) -> None:
        """Build the program of what was followed so far. From here on, ops are recorded."""
        if self._follower is not None:
            try:  # as `whole` does
                self._builder, self._follower = self._view(), None
            except BaseException:
                self.damaged = True
                raise

    def _built(self) -> Builder:
        if self._follower is not None:
            self.build()
        return self._builder

    def _view(self) -> Builder:
        """Return the program of what was followed so far, which goes on."""
        follower = self._follower
        if follower is None:
            return self._builder
        if follower.view is None or follower.viewed != follower.stamp():
            follower.views += 1
            follower.view, follower.viewed = follower.build(), follower.stamp()
            if follower.views > MOST_VIEWS:  # of a long program: each takes as long as the program
                self.build()
        return follower.view

    def follow(self, events: Sequence[Any]) -> Sequence[Any]:
        """Return the events that remain to be recorded; none while the program is the same as before."""
        follower = self._follower
        assert follower is not None
        done = 0 if self.tensors.recomputed else follower.follow(events)  # which only knows vars by identity
        if done == len(events):
            return ()
        self.build()
        return events[done:]

    def follow_custom(
        self,
        name: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        function: Callable,
        place: Place,
        time: int,
    ) -> bool:
        """Return whether a custom gradient is the one of the program that is followed."""
        follower = None if self.tensors.recomputed else self._follower
        return follower is not None and follower.follow_custom(name, outputs, inputs, function, place, time)

    # ------------------------------------------------------------------ without building the program

    def histories(self) -> Mapping[int, VariableHistory]:
        """Return the histories of variables, by identity of the handle; only to look up their versions."""
        template = self.followed()
        if template is None or self._follower is None:
            return self.facts.histories
        follower = self._follower
        if len(follower.histories) != len(follower.slots):
            follower.histories = {key: template.histories[slot] for key, slot in follower.slots.items()}
        return follower.histories

    def slots_of(self, handles: Iterable[int]) -> tuple[int | None, ...]:
        """Return the numbers of the histories of variables, in order of first use, by identities of their handles."""
        follower = self._follower
        slots = {key: slot for slot, key in enumerate(self.facts.histories)} if follower is None else follower.slots
        return tuple(map(slots.get, handles))

    @property
    def layer_calls(self) -> dict[int, LayerCall]:
        """The calls of layers, by when they began."""
        return self._builder.facts.layer_calls

    def unread(self) -> list[Handle]:
        """Return the handles of variables that have not been read since they were last assigned."""
        return super().unread() if self._follower is None else self._follower.unread()

    def copied(self) -> list[Handle]:
        """Return the handles of variables whose kept values are copies, which do not reveal a later write."""
        if self._follower is None or not self.copied_on_read:
            return super().copied() if self.copied_on_read else []
        handles, slots = self._follower.handles, self._follower.slots
        return [handles[slots[identity]] for identity in self.copied_on_read if identity in slots]

    def hold(self, handle: Handle, value: Tensor) -> None:
        """Keep `value` as the current value of a variable, and map it to its var, so that uses of it are connected."""
        follower = self._follower
        version = None if follower is None else follower.current(handle)
        if version is None:
            super().hold(handle, value)
        else:
            self.tensors.alias(identity_of(value), version)  # first: a kept value must be known by identity
            self.values[version] = value

    def add_host_read(self, identity: int, time: int, place: Place, method: str, moment: int) -> None:
        """Record that Python read a value."""
        if self._follower is not None:
            self._follower.host_reads.append((identity, time, place, method, moment))
        else:
            self._append_host_read(identity, time, place, method, moment)
