"""What is to be measured, as the client asks for it and the server checks it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from farstep.engine import EndpointProfile, InvalidFieldError
from farstep.engine.path_mode import PathModeWish
from farstep.perf.errors import PerfError

__all__ = ["SIZE_MAX_BYTES", "Direction", "Measure", "PerfPlan"]

Measure = Literal["goodput", "latency"]
Direction = Literal["forward", "reverse", "both"]

SIZE_MAX_BYTES = 1 << 30
"""Of one write; longer ones are several on the wire."""
MEMORY_MAX_BYTES = 4 << 30
"""Of all buffers of an end: a client cannot ask a server for more."""
CONNECTIONS_MAX = 256
DEPTH_MAX = 4096
PLANES_MAX = 32
TIME_MAX_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfPlan:
    """One measurement.

    Attributes:
        measure: `goodput`: writes, as many as go; `latency`: one small write there, one back, and so on.
        direction: `forward`: the client sends; `reverse`: the server; `both`: at the same time.
        size_bytes: of one write.
        depth: writes in flight on each connection.
        connections: between the two ends.
        planes: ports of each end, where its addresses do not say.
        time_s: how long; None where `total_bytes` says how much.
        total_bytes: over all connections, in each direction.
        omit_s: at the beginning, left out of the figures.
        path_mode: see `EndpointProfile`, as the rest.
        mtu_bytes: payload of a full packet.
        burst_segments: packets that leave together on one path.
        is_checked: whether packets carry and check the invariant CRC.
    """

    measure: Measure = "goodput"
    direction: Direction = "forward"
    size_bytes: int = 1 << 20
    depth: int = 4
    connections: int = 1
    planes: int = 1
    time_s: float | None = 10.0
    total_bytes: int | None = None
    omit_s: float = 0.0
    path_mode: PathModeWish = "auto"
    mtu_bytes: int | None = None
    burst_segments: int | None = None
    is_checked: bool = True

    def __post_init__(self) -> None:
        for name, choices in (
            ("measure", get_args(Measure)),
            ("direction", get_args(Direction)),
            ("path_mode", get_args(PathModeWish)),
        ):
            if getattr(self, name) not in choices:
                raise PerfError(f"{name} = {getattr(self, name)!r}: valid: {', '.join(choices)}")
        for name, low, high in (
            ("size_bytes", 0 if self.measure == "latency" else 1, SIZE_MAX_BYTES),
            ("depth", 1, DEPTH_MAX),
            ("connections", 1, CONNECTIONS_MAX),
            ("planes", 1, PLANES_MAX),
        ):
            _check_whole(name, getattr(self, name), low, high)
        self._check_length()
        if self.measure == "latency" and (self.connections, self.direction) != (1, "forward"):
            raise PerfError(
                "latency is measured on one connection, from the client: no other direction, no more"
            )
        if self.size_bytes * self.connections > MEMORY_MAX_BYTES:
            raise PerfError(
                f"{self.connections} connections with writes of {self.size_bytes:,} bytes need more than"
                f" {MEMORY_MAX_BYTES:,} bytes of memory"
            )
        try:
            self.profile()
        except InvalidFieldError as error:
            raise PerfError(str(error)) from None

    def _check_length(self) -> None:
        if (self.time_s is None) == (self.total_bytes is None):
            raise PerfError("time_s and total_bytes: one of the two says how long it takes")
        if self.total_bytes is not None:
            _check_whole("total_bytes", self.total_bytes, 1, 1 << 60)
        for name in ("time_s", "omit_s"):
            value = getattr(self, name)
            is_number = (
                isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            )
            if value is not None and not (is_number and 0 <= value <= TIME_MAX_S):
                raise PerfError(f"{name} = {value!r}: valid: 0 to {TIME_MAX_S:.0f} seconds")

    @property
    def client_sends(self) -> bool:
        """Whether data flows from the client."""
        return self.direction != "reverse"

    @property
    def server_sends(self) -> bool:
        """Whether data flows from the server."""
        return self.direction != "forward"

    def bytes_of(self, connection: int) -> int | None:
        """What one connection sends: its share of the whole; None: until the time is over."""
        if self.total_bytes is None:
            return None
        share, rest = divmod(self.total_bytes, self.connections)
        return share + (connection < rest)

    def profile(self, **more: Any) -> EndpointProfile:
        """Returns the profile of an end's endpoint.

        Args:
            more: what is an end's own affair.

        Raises:
            InvalidFieldError: a value is out of range.
        """
        if self.burst_segments is not None:
            more["burst_segments"] = self.burst_segments
        return EndpointProfile(
            path_mode=self.path_mode, mtu_bytes=self.mtu_bytes, icrc=self.is_checked, **more
        )

    def table(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: Any) -> PerfPlan:
        """Reads what :meth:`table` has made, elsewhere.

        Raises:
            PerfError: it is none.
        """
        if not isinstance(table, dict) or set(table) != {field.name for field in fields(cls)}:
            raise PerfError("the plan of the measurement is of another version of farstep")
        return cls(**table)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PerfError(f"{name} = {value!r}: valid: {low} to {high:,}")
