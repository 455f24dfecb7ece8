"""Where times of the flow level are known to be further from packets than its bands: 5 % for medians, 10 % for P99.

The figures were measured against this simulator's packets on a fat tree of 128 NICs; the concept page on the flow level
has them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from farstep.sim.flow.settings import TRANSPORTS

__all__ = ["SHORT_BYTES", "limits_of"]

SHORT_BYTES = 1_000_000
"""From this size on, permutations of sprayed transports are within the bands."""

_HASHED = "single paths: medians up to a half off, P99 as low as a tenth of that in packets"
_INCAST = (
    "incast: flows end together, the median up to a third late; the end of the last one agrees within 10 %"
)
_MANY = "all-to-all: medians agree within 5 %, P99 comes up to 55 % early and the last flow up to 70 %"
_SHORT = f"flows below {SHORT_BYTES / 1e6:g} MB: medians and P99 up to 25 % late"


def limits_of(transport: str, workloads: Iterable[str] = (), *, flow_bytes: float | None = None) -> list[str]:
    """Names what to expect of results that are outside the bands.

    Args:
        transport: name of the transport.
        workloads: kinds of the jobs, such as `incast`.
        flow_bytes: typical size of a flow; None: not known.

    Returns:
        One text for each limit; none where the bands hold.
    """
    if transport not in TRANSPORTS or transport == "ideal":
        return []
    kinds = set(workloads)
    is_hashed = TRANSPORTS[transport].spreading == "hash"
    is_short = flow_bytes is not None and flow_bytes < SHORT_BYTES
    found = {
        _HASHED: is_hashed,
        _INCAST: "incast" in kinds and not is_hashed,
        _MANY: "all-to-all" in kinds and not is_hashed,
        _SHORT: "permutation" in kinds and is_short and transport.startswith("uet-"),
    }
    return [text for text, applies in found.items() if applies]
