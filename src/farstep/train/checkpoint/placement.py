"""Which member holds which shard, so that what fails together holds as little as possible together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from farstep.train.checkpoint.erasure import Scheme

__all__ = ["Domain", "Tolerance", "place", "replace_lost", "tolerance"]


@dataclass(frozen=True, slots=True)
class Domain:
    """What a member shares its fate with."""

    name: str
    site: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a placement survives: losses of so many of a kind, whichever they are."""

    members: int
    hosts: int
    sites: int


def place(domains: Sequence[Domain], shards: int, *, avoid: int | None = None) -> tuple[int, ...]:
    """Returns the member that holds each shard.

    Members hold equally many, or differ by one; among equals, shards are spread over sites first and
    hosts next. The same on every member.

    Args:
        domains: of the members, by rank.
        shards: how many there are.
        avoid: a member that holds none if others are enough, as its own loss is what is insured.
    """
    return replace_lost({}, domains, range(shards), avoid=avoid, shards=shards)


def replace_lost(
    held: Mapping[int, int],
    domains: Sequence[Domain],
    lost: Sequence[int] | range,
    *,
    shards: int,
    avoid: int | None = None,
) -> tuple[int, ...]:
    """Returns the member that holds each shard, where those already held stay.

    Args:
        held: member by shard.
        domains: of the members, by rank.
        lost: shards without a member.
        shards: how many there are, held and lost.
        avoid: as in `place`.
    """
    holders = dict(held)
    members = Counter(holders.values())
    sites: Counter[str] = Counter()
    hosts: Counter[tuple[str, str]] = Counter()
    for member in holders.values():
        sites[domains[member].site] += 1
        hosts[domains[member].site, domains[member].host] += 1
    candidates = [member for member in range(len(domains)) if member != avoid or len(domains) <= shards]
    for shard in lost:
        chosen = min(
            candidates,
            key=lambda member: (
                members[member],
                member == avoid,
                sites[domains[member].site],
                hosts[domains[member].site, domains[member].host],
                member,
            ),
        )
        holders[shard] = chosen
        members[chosen] += 1
        sites[domains[chosen].site] += 1
        hosts[domains[chosen].site, domains[chosen].host] += 1
    return tuple(holders[shard] for shard in range(shards))


def tolerance(holders: Sequence[int], domains: Sequence[Domain], scheme: Scheme) -> Tolerance:
    """Returns how many members, hosts or sites may be lost at once, in the worst case."""
    of = [domains[member] for member in holders]
    return Tolerance(
        members=_survived(Counter(holders).values(), scheme),
        hosts=_survived(Counter((domain.site, domain.host) for domain in of).values(), scheme),
        sites=_survived(Counter(domain.site for domain in of).values(), scheme),
    )


def _survived(shards_of_each: Iterable[int], scheme: Scheme) -> int:
    """Returns how many holders may be lost, those of the most shards first."""
    left = accumulate(sorted(shards_of_each, reverse=True))
    return sum(lost <= scheme.tolerated for lost in left)
