"""The attributes of an object, a class or a module, of which those count that code names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from retrotape.python._compare import ABSENT, same


class Namespace:
    """The attributes of an object, or of a module: those that code names count.

    Attributes:
      owner: The object.
      space: Its dictionary.
      before: What was in it.
      label: What a message calls the object.
      name: Takes the walk, this, and a name that code names, and notes what it stands for.
      of_class: The names that the class of the object has.
      is_whole: Whether no code but the user's changes it: then other names may not change either.
      is_lazy: Whether names are added when they are first used.
      may_miss: Whether a later run depends on names that are missing, and nothing else tells that they come.
      is_sized: Whether a later run depends on how many names there are.
    """

    def __init__(
        self,
        owner: Any,
        space: Mapping[str, Any],
        label: str,
        name: Callable[[Any, Namespace, str], None],
        of_class: Collection[str] = (),
        is_whole: bool = True,
        is_sized: bool = False,
        is_lazy: bool = False,
        may_miss: bool = False,
        skipped: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.owner, self.space, self.label, self.name = owner, space, label, name
        self.of_class, self.is_whole, self.is_sized, self._skipped = of_class, is_whole, is_sized, skipped
        self.is_lazy, self.may_miss = is_lazy, may_miss or is_whole
        self.before = self._now()

    def _now(self) -> dict[str, Any]:
        return {name: value for name, value in list(self.space.items()) if not self._skipped(name)}

    def unnamed(self) -> list[str]:
        """Return the names that count where any may be looked up: without what a library keeps for itself."""
        if self.is_lazy:
            return []
        return [name for name in self.before if self.is_whole or not name.startswith("_")]

    def added(self, names: Collection[str]) -> list[str]:
        """Return which of these names are new."""
        return [name for name in names if name in self.space and name not in self.before and not self._skipped(name)]

    def counts(self, name: str) -> bool:
        """Return whether an attribute of this name would count."""
        return not self._skipped(name)

    def changed(self) -> str | None:
        """Return the first name that stands for something else; None if none does."""
        now = self._now() if self.is_whole else self.before
        names = now.keys() | self.before.keys() if self.is_whole else ()
        return next((n for n in names if not same(now.get(n, ABSENT), self.before.get(n, ABSENT))), None)
