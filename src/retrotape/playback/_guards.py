"""Whether Python state is what it was when a step was recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any

from retrotape.playback._python_state import Capture
from retrotape.playback._values import ABSENT, Content, Item, Slots, are_equal, is_unchanged


class _Group:
    """The names of one namespace, compared at once."""

    __slots__ = ("expected", "get", "items", "space")

    def __init__(self, items: Sequence[Item]) -> None:
        self.items, self.space = items, items[0].space
        keys = [item.key for item in items]
        pick: Any = itemgetter(*keys)
        if isinstance(self.space, Slots):
            by_name = attrgetter(*keys)
            pick = lambda space: by_name(space.value)  # noqa: E731
        self.get: Callable[[Any], tuple[Any, ...]] = pick if len(keys) > 1 else lambda space: (pick(space),)
        self.expected = tuple(item.value for item in items)

    def changed(self) -> Item | None:
        """Return the first name that stands for something else; equal numbers are made the expected ones."""
        now = [self.space.get(item.key, ABSENT) for item in self.items]
        for item, before, value in zip(self.items, self.expected, now, strict=True):
            if not are_equal(before, value):
                return item
        self.expected = tuple(now)
        return None


class StateGuard:
    """Compares Python state with what it was.

    Args:
      captured: The state, as the calls of one variant have found it.

    Attributes:
      tensors: The tensors that it refers to, by `id`.
    """

    def __init__(self, captured: Sequence[Capture]) -> None:
        items = {key: item for one in captured for key, item in one.items.items()}
        contents = {key: content for one in captured for key, content in one.contents.items()}
        self.tensors = {key: tensor for one in captured for key, tensor in one.tensors.items()}
        objects = {id(one): one for part in captured for one in (*part.objects(), *part.of_keras)}
        self._objects, self._kinds = list(objects.values()), [type(one) for one in objects.values()]
        keras = {kind for one in self._kinds for kind in one.__mro__ if kind.__module__.startswith("keras.")}
        self._members = [(vars(kind), tuple(vars(kind).values())) for kind in keras]
        by_space: dict[int, list[Item]] = {}
        absent: list[Item] = []
        for (where, _), item in items.items():
            if item.value is ABSENT:
                absent.append(item)
            else:
                by_space.setdefault(where, []).append(item)
        groups = [_Group(found) for found in by_space.values()]
        self._fast = [(group.get, group.space, group) for group in groups]
        self._absent, self._contents = absent, list(contents.values())
        self._sizes = list({key: size for one in captured for key, size in one.sizes.items()}.values())

    def changed(self) -> str | None:
        """Return what has changed, for a message; None if nothing has."""
        for get, space, group in self._fast:
            try:
                if all(map(is_, get(space), group.expected)):
                    continue
            except (AttributeError, KeyError):
                pass
            item = group.changed()
            if item is not None:
                return item.label
        if not all(map(is_, map(type, self._objects), self._kinds)):
            return "the class of an object"
        for members, before in self._members:
            if len(members) != len(before) or not all(map(is_, members.values(), before)):
                return "a class of Keras"
        for container, value, label, _ in self._contents:
            if not is_unchanged(container, value):
                return f"what {label} contains"
        for item in self._absent:
            if item.key in item.space:
                return item.label
        for space, size, label, _ in self._sizes:
            if len(space) != size:
                return f"which attributes {label} has"
        return None


def changes_between(before: Capture, after: Capture) -> tuple[list[Item], list[Content]]:
    """Return what changed between two captures: names, and containers."""
    items = [
        item
        for key, item in after.items.items()
        if key in before.items and not are_equal(before.items[key].value, item.value)
    ]
    new = [key for key, item in after.items.items() if key not in before.items and item.value is not ABSENT]
    items += [after.items[key] for key in new if before.knows(key[0]) and key[0] not in after.lazy]
    contents = [
        content
        for key, content in after.contents.items()
        if key in before.contents and not is_unchanged(content.container, before.contents[key].value)
    ]
    return items, contents
