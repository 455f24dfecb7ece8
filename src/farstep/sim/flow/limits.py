"""Where times of the flow level are known to be further from packets than its bands: 5 % for medians, 10 % for P99.

The figures were measured against this simulator's packets; the concept page on the flow level has them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from farstep.fabric.topology import Topology
from farstep.sim.flow.settings import TRANSPORTS

__all__ = ["SHORT_BYTES", "limits_of"]

SHORT_BYTES = 1_000_000
"""From this size on, permutations of sprayed transports are within the bands."""

_INCAST = "incast: medians within 10 %, P99 up to 16 % early where few send; how unequal flows end is drawn"
_HASHED_INCAST = "incast: end of the last within 10 %, the median up to a half off with a dozen short flows"
_MANY = "all-to-all: medians agree within 5 %, P99 comes up to 60 % early and the last flow up to 75 %"
_HASHED_MANY = "all-to-all: medians agree within 5 %, P99 is up to a half off"
_TIMEOUTS = (
    "timeouts: medians of permutations within 14 %; who waits for one is drawn, P99 from a quarter to twice"
)
_SHORT = f"flows below {SHORT_BYTES / 1e6:g} MB: medians and P99 up to 25 % late"
_TAIL = "oblivious spraying: P99 up to 25 % early"
_PULL = "receiver pull: medians of permutations within 7 %, P99 within 11 %; of rings up to 50 % early"
_HASHED_RING = "rings out of order: medians within 5 %, P99 up to 65 % late, where several flows share a path"
_FLAT = "fabrics without tiers: medians of hashed flows up to a quarter early, P99 up to 80 % off"
_NARROW = "oversubscribed fabrics: medians of sprayed flows up to 16 % late, P99 within 10 %"
_FAULTS = (
    "faults: P90 and later up to 40 times early, as nobody waits for timeouts; drops 0.4 to 9 times as many"
)
_ROCE_FAULTS = (
    "faults: who waits for a timer within 15 %, P99 10 %, drops 16 %; the last flow a third off if none waits"
)
_TCP_FAULTS = (
    "faults: who waits for a timer within a quarter; P99 up to a half early, the last flow up to 75 %"
)


def limits_of(
    transport: str,
    workloads: Iterable[str] = (),
    *,
    flow_bytes: float | None = None,
    has_faults: bool = False,
    topology: Topology | None = None,
) -> list[str]:
    """Names what to expect of results that are outside the bands.

    Args:
        transport: name of the transport.
        workloads: kinds of the jobs, such as `incast`.
        flow_bytes: typical size of a flow; None: not known.
        has_faults: whether something happens to links.
        topology: the network; None: one in tiers without oversubscription.

    Returns:
        One text for each limit; none where the bands hold.
    """
    if transport not in TRANSPORTS or transport == "ideal":
        return []
    kinds = set(workloads)
    is_hashed = TRANSPORTS[transport].spreading == "hash"
    is_uet = transport.startswith("uet-")
    is_short = flow_bytes is not None and flow_bytes < SHORT_BYTES
    found = {
        _TIMEOUTS: transport == "tcp",
        _HASHED_INCAST: "incast" in kinds and transport == "roce",
        _INCAST: "incast" in kinds and not is_hashed and transport != "ndp",
        _HASHED_MANY: "all-to-all" in kinds and transport == "roce",
        _MANY: "all-to-all" in kinds and not is_hashed,
        _SHORT: "permutation" in kinds and is_short and is_uet,
        _TAIL: "permutation" in kinds and not is_short and transport in ("uet-oblivious", "uet-rccc"),
        _PULL: transport == "ndp",
        _HASHED_RING: "all-reduce" in kinds and transport == "roce",
        _FLAT: is_hashed and topology is not None and topology.node_tier.max() < 1,
        _NARROW: not is_hashed and topology is not None and _is_oversubscribed(topology),
        _FAULTS: has_faults and transport != "mrc" and not is_hashed,
        _ROCE_FAULTS: has_faults and transport == "roce",
        _TCP_FAULTS: has_faults and transport == "tcp",
    }
    return [text for text, applies in found.items() if applies]


def _is_oversubscribed(topology: Topology) -> bool:
    """Whether the switches of the first tier have less capacity upwards than their NICs send."""
    tier = topology.node_tier
    near, far = tier[topology.link_source], tier[topology.link_target]
    sent = topology.link_rate_gbps[near < 0].sum()
    up = topology.link_rate_gbps[(near == 0) & (far > 0)].sum()
    return bool(0.0 < up < ENOUGH * sent)


ENOUGH = 0.95
"""Of what NICs send, what counts as no oversubscription."""
