"""Who is to blame for a step that failed, and what for, as its error and the causes of that tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from farstep.engine import WaitTimeout
from farstep.membership import Generation

__all__ = ["is_late", "suspects_of"]

STEP_WORDS = re.compile(r"\brank ?(\d+)\b")


def suspects_of(error: BaseException, generation: Generation, own_id: str) -> list[str]:
    """Members that an error and its causes name; lanes call them by their seats."""
    found: list[str] = []
    for link in _causes(error):
        for match in STEP_WORDS.finditer(f"{getattr(link, 'peer', '')} {link}"):
            seat = int(match.group(1))
            if seat < len(generation.seats):
                found.append(generation.seats[seat].member_id)
    return [member_id for member_id in dict.fromkeys(found) if member_id != own_id]


def is_late(error: BaseException) -> bool:
    """Whether nothing has failed, but somebody's part did not come in time."""
    return any(isinstance(link, WaitTimeout) for link in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and what led to it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
