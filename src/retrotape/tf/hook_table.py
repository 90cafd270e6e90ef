"""The table of hooks: the replaced attributes, their originals, and the current users.

KeyboardInterrupt may occur between any two lines here. So there is no reference count: the hooks are installed if and
only if `users`, which changes atomically, is not empty. Installing and removing can be interrupted and rerun, and every
change of `users` brings the hooks in line with it, whatever an earlier interrupt left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from retrotape._locks import new_lock

# One lock for all state that recording shares between threads. Reentrant: garbage collection may run anywhere and
# close open tapes.
lock = new_lock()
users: dict[Any, Any] = {}  # those that need the hooks now
original: dict[tuple[Any, str], Any] = {}  # by owner and attribute: what the replacement calls
_in_place: bool | None = False  # None while changing


class Hook:
    """An attribute of TensorFlow or Keras, and its replacement while something records."""

    __slots__ = ("above", "below", "name", "owner", "placed", "replacement")

    def __init__(self, owner: Any, name: str, replacement: Any) -> None:
        self.owner, self.name, self.replacement = owner, name, replacement
        self.placed = False
        self.below: Any = self  # the original; not known yet
        self.above: Any = None  # a third-party wrapper around our replacement that stayed there

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
    """Add hooks, effective the next time that hooks are installed.

    A second hook for the same attribute is ignored.
    """
    for owner, name, replacement in more:
        if not any(hook.key == (owner, name) for hook in hooks):
            hook = Hook(owner, name, replacement)
            _replacements[id(replacement)] = hook
            hooks.append(hook)


def add_finder(find: Callable[[], None]) -> None:
    """Call `find` before hooks are installed: it may add hooks for newly imported modules."""
    _finders.append(find)


def add_switch(on: Callable[[], None], off: Callable[[], None]) -> None:
    """Call `on` when hooks are installed and `off` when they are removed; both must be idempotent."""
    _switches.append((on, off))


def need(user: Any, value: Any = None) -> None:
    """Keep the hooks installed until `release`."""
    users[user] = value
    agree()


def release(user: Any) -> None:
    """Undo `need`; harmless without it."""
    users.pop(user, None)
    agree()


def agree() -> None:
    """Install the hooks if `users` is not empty, else remove them."""
    global _in_place
    while _in_place is not bool(users):
        with lock:
            _in_place = None  # first: other threads then wait for the lock
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
        if current is hook.below and not hook.placed:  # as the last time
            hook.placed = True
            setattr(owner, name, hook.replacement)
            continue
        if current is hook.above:
            continue  # ours is below it
        if id(current) not in _replacements:
            original[owner, name] = hook.below = current  # first: the replacement calls it
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
            setattr(owner, name, hook.below)
        elif id(current) in _replacements:  # TensorFlow assigns one of these attributes to another, `execute.execute`
            setattr(owner, name, original[_replacements[id(current)].key])
        elif current is not original[owner, name]:
            hook.above = current  # calls our replacement, which calls the original
        hook.placed = False
    for _, off in _switches:
        off()


def unhooked(owner: Any, name: str) -> Any:
    """Return the value of an attribute without our hook."""
    current = getattr(owner, name)
    return original[owner, name] if id(current) in _replacements else current
