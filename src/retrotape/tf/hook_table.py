"""The table of hooks: what stands in whose place, what was there before, and who needs it now.

Ctrl-C may come between any two lines here. So nothing is counted: the hooks are in place exactly if somebody is in
`users`, which is changed by one assignment; installing and removing may each be broken off and be run again; and
everybody who comes or goes lets the hooks agree with `users`, whatever was left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any

# One lock for all that recording shares between threads, and one that its owner may take again: garbage is collected
# anywhere, and with it tapes that are still open.
lock = RLock()
users: dict[Any, Any] = {}  # who needs the hooks now
original: dict[tuple[Any, str], Any] = {}  # by owner and attribute: what is called in the end
_in_place: bool | None = False  # None while that changes


class Hook:
    """One attribute of TensorFlow or Keras, and what stands in its place while something records."""

    __slots__ = ("above", "name", "owner", "placed", "replacement")

    def __init__(self, owner: Any, name: str, replacement: Any) -> None:
        self.owner, self.name, self.replacement = owner, name, replacement
        self.placed = False
        self.above: Any = None  # what somebody else has put on top of ours, and left there

    @property
    def key(self) -> tuple[Any, str]:
        """Owner and name."""
        return self.owner, self.name

    def __iter__(self) -> Iterator[Any]:
        return iter((self.owner, self.name, self.replacement))


hooks: list[Hook] = []
_replacements: dict[int, Hook] = {}  # by `id`
_finders: list[Callable[[], None]] = []
_switches: list[tuple[Callable[[], None], Callable[[], None]]] = []


def add_hooks(*more: tuple[Any, str, Any]) -> None:
    """Have more hooks in place while something records, from the next time on that they are installed.

    One for an attribute that has one already is left out.
    """
    for owner, name, replacement in more:
        if not any(hook.key == (owner, name) for hook in hooks):
            hook = Hook(owner, name, replacement)
            _replacements[id(replacement)] = hook
            hooks.append(hook)


def add_finder(find: Callable[[], None]) -> None:
    """Call `find` before hooks are installed: it may add some for what was not imported before."""
    _finders.append(find)


def add_switch(on: Callable[[], None], off: Callable[[], None]) -> None:
    """Have something done when hooks are installed and undone when they are removed; each may be run twice."""
    _switches.append((on, off))


def need(user: Any, value: Any = None) -> None:
    """Have the hooks in place until `release`."""
    users[user] = value
    agree()


def release(user: Any) -> None:
    """End what `need` began; harmless where it did not."""
    users.pop(user, None)
    agree()


def agree() -> None:
    """Let the hooks be in place if somebody needs them, and not if nobody does."""
    global _in_place
    while _in_place is not bool(users):
        with lock:
            _in_place = None  # first: whoever comes after this waits for the lock
            wanted = bool(users)
            if wanted:
                _install()
            else:
                _uninstall()
            _in_place = wanted


def _install() -> None:
    for find in _finders:
        find()
    for hook in hooks:
        owner, name = hook.owner, hook.name
        current = getattr(owner, name)
        if current is hook.above:
            continue  # ours is below it
        if id(current) not in _replacements:
            original[owner, name] = current  # first: the replacement calls it
            hook.above = None
            hook.placed = True
            setattr(owner, name, hook.replacement)
        hook.placed = True
    for on, _ in _switches:
        on()


def _uninstall() -> None:
    for hook in hooks:
        if not hook.placed:
            continue
        owner, name = hook.owner, hook.name
        current = getattr(owner, name)
        if current is hook.replacement:
            setattr(owner, name, original[owner, name])
        elif id(current) in _replacements:  # TensorFlow assigns one of these attributes to another, `execute.execute`
            setattr(owner, name, original[_replacements[id(current)].key])
        elif current is not original[owner, name]:
            hook.above = current  # which calls ours, and that calls what was there before
        hook.placed = False
    for _, off in _switches:
        off()


def unhooked(owner: Any, name: str) -> Any:
    """Return what an attribute is without our hook."""
    current = getattr(owner, name)
    return original[owner, name] if id(current) in _replacements else current
