"""Transports and switches as a scenario describes them: names, knobs and their units.

A knob left out keeps the value the transport's own rules give it, most often derived from rate and round trip. A level
of simulation, or a transport, that has no use for a knob ignores it (`ignored_knobs` tells which).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from farstep.fabric.errors import names, quoted
from farstep.sim.refusals import PlainModel

__all__ = ["TRANSPORTS", "Switch", "Transport"]

TRANSPORTS: Mapping[str, str] = {
    "mrc": "sprayed over explicit paths that senders judge one by one; windows after NSCC",
    "roce": "RoCEv2 RC: a path per queue pair by hash, go-back-N, PFC and DCQCN",
    "uet-oblivious": "UET NSCC, entropy values in turn whatever becomes of them",
    "uet-bitmap": "UET NSCC, entropy values left out for a turn after a mark",
    "uet-reps": "UET NSCC, entropy values recycled while they work (REPS)",
    "uet-mixed": "UET NSCC, recycled entropy values first, then the bitmap",
    "uet-rccc": "UET with receiver credit instead of a window, entropy values in turn",
    "ndp": "receivers pull; trimmed packets tell them at once",
    "tcp": "one path by hash, selective retransmission, a window after ECN",
    "adaptive-routing": "switches choose the emptier port for each packet",
    "ideal": "flow level only: all paths, no collisions, faults known at once",
}
"""Transports by name, and what each is."""

Bytes = Annotated[int, Field(ge=1, le=2**40)]
Microseconds = Annotated[float, Field(ge=0.0, le=1e9)]


class _Described(PlainModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Transport(_Described):
    """The transport of all jobs, and its knobs."""

    name: str = "mrc"
    """one of the transports"""
    mtu_bytes: Annotated[int, Field(ge=64, le=65_536)] | None = None
    """payload of a full packet"""
    overhead_bytes: Annotated[int, Field(ge=0, le=1_024)] | None = None
    """what a packet takes on the wire besides its payload"""
    host_latency_us: Microseconds | None = None
    """time a packet spends in the receiving host"""
    evs: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """active entropy values of a connection in each plane"""
    backup_evs: Annotated[int, Field(ge=0, le=1_024)] | None = None
    """entropy values that replace bad ones in each plane"""
    probe_interval_us: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    """time between probes of a bad path"""
    restore_probes: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """answered probes that make a bad path good again"""
    skip_passes: Annotated[int, Field(ge=0, le=1_000)] | None = None
    """turns of the rotation a marked path sits out; the rest of the current one at least"""
    sack_bytes: Bytes | None = None
    """bytes after which a receiver acknowledges"""
    mpr_packets: Annotated[int, Field(ge=128, le=32_640)] | None = None
    """packets in flight a receiver can keep apart, a multiple of 128"""
    remap_us: Microseconds | None = None
    """from a NIC port's failure until the NIC and its peers have left the plane"""
    rto_us: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    """first retransmission timeout"""
    target_delay_us: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    """queueing delay the congestion control aims at"""
    window_bytes: Bytes | None = None
    """ceiling of the congestion window"""
    quick_adapt: bool | None = None
    """whether the window falls at once when most of it is lost or trimmed"""
    capacity_share: bool | None = None
    """whether planes share a connection by the capacity each has left; false: as equals (mrc)"""
    queue_pairs: Annotated[int, Field(ge=1, le=64)] | None = None
    """queue pairs of a connection, each with a path of its own (roce)"""
    pfc: bool | None = None
    """whether switches pause what fills their queues (roce)"""
    dcqcn: bool | None = None
    """whether senders slow down when told of marks (roce)"""
    reconvergence_us: Microseconds | None = None
    """from a failure until routing goes round it, where the transport leaves that to routing"""
    engine: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """settings of the packet engine by its own names, for what has no key here"""

    @model_validator(mode="before")
    @classmethod
    def _name_is_known(cls, table: Any) -> Any:
        name = table.get("name", "mrc") if isinstance(table, Mapping) else "mrc"
        if not isinstance(name, str) or name not in TRANSPORTS:
            raise ValueError(f"name = {quoted(name)}: no such transport; valid: {names(TRANSPORTS)}")
        if (
            isinstance(table, Mapping)
            and isinstance(packets := table.get("mpr_packets"), int)
            and packets % 128
        ):
            raise ValueError(f"mpr_packets = {packets}: must be a multiple of 128")
        return table

    @property
    def knobs(self) -> dict[str, Any]:
        """What is set besides the name, but for the engine's own settings."""
        return self.model_dump(exclude={"name", "engine"}, exclude_none=True)

    def renamed(self, name: str) -> Transport:
        """Another transport with the same knobs."""
        return Transport.model_validate({**self.knobs, "engine": self.engine, "name": name})


class Switch(_Described):
    """What all switches do with packets that have to wait."""

    queue_bytes: Bytes | None = None
    """room of a port's queue; left out: one bandwidth-delay product"""
    last_hop_queue_bytes: Bytes | None = None
    """room of a queue that faces a NIC"""
    ecn_min_bytes: Annotated[int, Field(ge=0, le=2**40)] | None = None
    """queue from which on packets are marked now and then..."""
    ecn_max_bytes: Bytes | None = None
    """...and from which on all are"""
    trimming: bool | None = None
    """whether a packet that finds no room is cut to its header; false: it is lost"""
    last_hop_ecn: bool | None = None
    """whether queues that face a NIC mark packets, too"""

    @model_validator(mode="after")
    def _marks_rise(self) -> Switch:
        low, high = self.ecn_min_bytes, self.ecn_max_bytes
        if low is not None and high is not None and low > high:
            raise ValueError(f"ecn_min_bytes = {low}: must not exceed ecn_max_bytes = {high}")
        return self

    @property
    def knobs(self) -> dict[str, Any]:
        """What is set."""
        return self.model_dump(exclude_none=True)


Level = Literal["packet", "flow"]
"""Levels of simulation."""
