"""Who trains together, under which number: decided by the members themselves, proposed by a coordinator."""

from farstep.membership.errors import (
    Evicted,
    GenerationOver,
    MembershipClosed,
    MembershipError,
    MembershipTimeout,
    RunEnded,
)
from farstep.membership.interface import Membership, MembershipStore
from farstep.membership.local import LocalHub, LocalMembership
from farstep.membership.records import (
    Ballot,
    Generation,
    MemberInfo,
    MembershipConfig,
    Wants,
    name_of,
    new_member_id,
)

__all__ = [
    "Ballot",
    "Evicted",
    "Generation",
    "GenerationOver",
    "LocalHub",
    "LocalMembership",
    "MemberInfo",
    "Membership",
    "MembershipClosed",
    "MembershipConfig",
    "MembershipError",
    "MembershipStore",
    "MembershipTimeout",
    "RunEnded",
    "Wants",
    "name_of",
    "new_member_id",
]
