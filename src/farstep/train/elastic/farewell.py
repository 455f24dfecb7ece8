"""The last look at each other: at the end of a run, do all replicas hold the same state?"""

from __future__ import annotations

import logging
import time
from typing import Any

from farstep.membership import Generation, MembershipError

__all__ = ["compare_at_end"]

logger = logging.getLogger("farstep.train")

WAIT_S = 1.0
"""How long to wait for the hashes of others that end at the same time. Who ends later finds those of the earlier."""


def compare_at_end(
    membership: Any, generation: Generation, *, step: int, lane: int, sha256: str
) -> list[str]:
    """Publishes the hash of this replica's state, and compares it with those that others publish.

    Args:
        membership: the line to the coordinator.
        generation: in force at the end; this member has a seat in it.
        step: steps committed.
        lane: rank within the replica group.
        sha256: of this member's state.

    Returns:
        Names of the members with another state; empty if there is none, or none that has ended yet. It is an event in
        the log too.
    """
    store = membership.store(f"end/{generation.run_id}/{lane}")
    others = [member for member in generation.seats if member.member_id != membership.member.member_id]
    differing = []
    try:
        store.set(f"{step}/{membership.member.member_id}", sha256.encode())
        deadline_s = time.monotonic() + WAIT_S
        for member in others:
            try:
                value = store.get(f"{step}/{member.member_id}", max(deadline_s - time.monotonic(), 0.0))
            except TimeoutError:
                continue
            if value.decode() != sha256:
                differing.append(member.name)
    except MembershipError as error:
        logger.debug("not compared at the end: %s", error)
    if differing:
        names = ", ".join(differing)
        membership.event("state_differs", step=step, members=names)
        logger.error(
            "at the end of the run, after %d steps, the state of %s differs from this one's", step, names
        )
    return differing
