"""What members have published, as far as a coordinator has to pass it on to those that come later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from farstep.membership.messages import StoreEntry

__all__ = ["Bulletin"]

SCOPES_MAX = 64
"""Most scopes kept; a run needs those of the last few generations and of the transfers under way."""

ENTRIES_PER_SCOPE_MAX = 8192
"""Most entries of a scope: a handful for each of a thousand members."""

CHARACTERS_MAX = 64 << 20
"""Most characters of all values; beyond it the scopes that were touched longest ago go first."""


class Bulletin:
    """Soft copy of all published entries, by scope and key; members hold their own and say them again."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[str, dict[str, tuple[str, StoreEntry]]] = OrderedDict()
        self._num_characters = 0

    def __iter__(self) -> Iterator[tuple[str, StoreEntry]]:
        for entries in self._scopes.values():
            yield from entries.values()

    def post(self, owner: str, entry: StoreEntry) -> bool:
        """Keeps an entry; returns whether it has to be passed on."""
        entries = self._scopes.setdefault(entry.scope, {})
        self._scopes.move_to_end(entry.scope)
        known = entries.get(entry.key)
        if known == (owner, entry) or (known is None and len(entries) >= ENTRIES_PER_SCOPE_MAX):
            return False
        self._num_characters += len(entry.value) - (len(known[1].value) if known else 0)
        entries[entry.key] = (owner, entry)
        while len(self._scopes) > SCOPES_MAX or (
            self._num_characters > CHARACTERS_MAX and len(self._scopes) > 1
        ):
            _, dropped = self._scopes.popitem(last=False)
            self._num_characters -= sum(len(old.value) for _, old in dropped.values())
        return True
