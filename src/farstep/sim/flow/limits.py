"""Where times of the flow level are known to be further from packets than its bands: 5 % for medians, 10 % for P99.

The figures were measured against this simulator's packets; the concept page on the flow level has them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from farstep.sim.flow.settings import TRANSPORTS

__all__ = ["SHORT_BYTES", "limits_of"]

SHORT_BYTES = 1_000_000
"""From this size on, permutations of sprayed transports are within the bands."""

_INCAST = "incast: medians within 10 %, P99 up to 16 % early where few send; how unequal flows end is drawn, not simulated"
_HASHED_INCAST = "incast: end of the last within 10 %, the median up to a half off with a dozen short flows"
_MANY = "all-to-all: medians agree within 5 %, P99 comes up to 60 % early and the last flow up to 75 %"
_HASHED_MANY = "all-to-all: medians agree within 5 %, P99 is up to a half off"
_TIMEOUTS = "timeouts: medians of permutations within 12 %; which flows wait for one is drawn, so that P99 is up to a half off"
_SHORT = f"flows below {SHORT_BYTES / 1e6:g} MB: medians and P99 up to 25 % late"
_TAIL = "oblivious spraying: P99 up to 16 % early"
_PULL = "receiver pull: on several planes packets take up to twice as long, in a ring P99 a third longer"
_FAULTS = "faults: P99 up to 40 % early, which timeouts make of packets that were lost"


def limits_of(
    transport: str,
    workloads: Iterable[str] = (),
    *,
    flow_bytes: float | None = None,
    has_faults: bool = False,
) -> list[str]:
    """Names what to expect of results that are outside the bands.

    Args:
        transport: name of the transport.
        workloads: kinds of the jobs, such as `incast`.
        flow_bytes: typical size of a flow; None: not known.
        has_faults: whether something happens to links.

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
        _FAULTS: has_faults and transport != "mrc",
    }
    return [text for text, applies in found.items() if applies]
