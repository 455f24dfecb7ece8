"""What happens to links during a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from farstep.fabric.topology.link_faults import LinkChangeKind

__all__ = ["LinkAction"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinkAction:
    """Something that happens to directed links at a time, and says what then holds for them.

    Attributes:
        time_ns: since the start of the simulation.
        links: directed links, int32, sorted.
        kind: `down`, `up`, `rate` (value: share of the nominal rate, above 0), `loss` (value: share of packets lost,
            0..1) or `delay` (value: ns added one way). 1, 0 and 0 take rate, loss and delay back.
        value: see `kind`.
        is_signalled: whether the ends of a link that goes down, or comes back, are told.
        text: what the script calls it.
    """

    time_ns: int
    links: NDArray[np.int32]
    kind: LinkChangeKind
    value: float = 0.0
    is_signalled: bool = True
    text: str = ""
