"""What a run waits for, in words for those who wait."""

from __future__ import annotations

import shlex

from farstep.membership.plan import Person
from farstep.membership.quorum import QuorumRule, quorum_size
from farstep.membership.records import Generation, MembershipConfig, natural_key
from farstep.membership.roster import Roster

__all__ = ["forming_text", "missing_votes_text"]

NAMES_MAX = 16
"""Most names listed in one sentence."""


def forming_text(people: list[Person], config: MembershipConfig) -> str:
    """Says what generation 1 waits for."""
    seats = [person.info.name for person in people if person.wants == "seat"]
    here = f" ({_names(seats)})" if seats else ""
    at_least = ""
    if config.groups_to_form < config.expected_groups:
        at_least = f", or with at least {config.groups_to_form} after {config.join_window_s:g} s"
    return (
        f"run {config.run} has not begun: {len(seats)} of {config.expected_groups} replica groups are here{here}; "
        f"generation 1 is formed when all are{at_least}"
    )


def missing_votes_text(base: Generation, roster: Roster, rule: QuorumRule, living: set[str], run: str) -> str:
    """Says whose votes are missing for the next generation, and what an operator can do."""
    members = {member.member_id: member for member in (*base.seats, *base.spares)}
    missing, lost = [], []
    for member_id in sorted(rule.voters - living - rule.dropped, key=natural_key):
        item = roster.get(member_id)
        missing.append(f"{members[member_id].name} ({roster.cause(item) if item else 'unknown'})")
        if member_id not in rule.certified:
            lost.append(members[member_id].name)
    here = [members[member_id].name for member_id in sorted(rule.voters & living, key=natural_key)]
    drops = " ".join(f"--drop {shlex.quote(name)}" for name in lost)
    num_voters = len(rule.voters - rule.dropped)
    size = quorum_size(num_voters)
    return (
        f"generation {base.number + 1} needs the votes of {size} of the {num_voters} members "
        f"of generation {base.number}; "
        f"here: {_names(here) or 'nobody'}; missing: {_names(missing)}. "
        f"If {_names(lost)} will never come back, and nobody trains with them elsewhere: "
        f"farstep override --run {shlex.quote(run)} --generation {base.number} {drops} --yes"
    )[:2000]


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"
