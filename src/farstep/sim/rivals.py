"""The transports MRC is compared with, at packet level: every knob, its default and where that comes from.

A table of knobs here is what `transport.engine` of a scenario may say for that transport. Names carry units; 0 stands
for what the rules derive from rate and round trip where the text says so. Sources: UET is the Ultra Ethernet
specification 1.0 and its reference simulator; NDP is Handley et al., SIGCOMM 2017; DCQCN is Zhu et al., SIGCOMM 2015.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, get_args, get_type_hints

from farstep.fabric.errors import quoted

__all__ = [
    "DCQCN_PRESETS",
    "RIVALS",
    "AdaptiveRoutingKnobs",
    "NdpKnobs",
    "RivalKnobs",
    "RivalSettingsError",
    "RoceKnobs",
    "TcpKnobs",
    "UetKnobs",
    "rival_knobs",
]

Spread = Literal["oblivious", "bitmap", "reps", "mixed", "permutation", "random"]
Growth = Literal["reno", "cubic", "dctcp"]

_WIRE = 38 + 40 + 8
"""Ethernet with preamble and gap, IPv6, UDP."""


class RivalSettingsError(ValueError):
    """A knob that cannot be used; the message names it, its value and what would be valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalKnobs:
    """What all of them have.

    Raises:
        RivalSettingsError: a value cannot be used.
    """

    ENGINE: ClassVar[str] = ""
    """Name of the transport in the engine."""
    FABRIC: ClassVar[Mapping[str, Any]] = {}
    """Settings of packets and switches that go with it, where a scenario says nothing else."""
    RECONVERGENCE_NS: ClassVar[float | None] = 1e9
    """From a failure until routing goes round it, by default; None: the transport does not depend on routing."""

    path_rtt_ns: int = 0
    """Round trip that windows are sized by; 0: that of a connection's own idle path."""
    answer_paths: int = 4
    """Paths in each plane that acknowledgements take in turn."""
    max_messages: int = 16
    """Messages a connection holds at once, a power of two."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if name.isupper():
                continue
            value = getattr(self, name)
            if choices := get_args(hint):
                if value not in choices:
                    raise RivalSettingsError(f"{name} = {quoted(value)}; valid: {', '.join(choices)}")
            elif hint is bool:
                if not isinstance(value, bool):
                    raise RivalSettingsError(f"{name} = {quoted(value)}; valid: true or false")
            else:
                low, high = _limits(name)
                of = (int,) if hint is int else (int, float)
                if isinstance(value, bool) or not isinstance(value, of) or not low <= value <= high:
                    raise RivalSettingsError(
                        f"{name} = {quoted(value)}; valid: {'whole numbers' if hint is int else 'numbers'}"
                        f" from {low:g} to {high:g}"
                    )
        for name in _POWERS_OF_TWO:
            value = getattr(self, name, 1)
            if value & (value - 1):
                raise RivalSettingsError(f"{name} = {value}; valid: a power of two")

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """Returns these knobs with some changed.

        Raises:
            RivalSettingsError: a name is none of them, or its value cannot be used.
        """
        known = [item.name for item in fields(self)]
        for name in changes:
            if name not in known:
                raise RivalSettingsError(f"{name}: no knob of this transport; valid: {', '.join(known)}")
        return replace(self, **changes)

    def values(self) -> dict[str, Any]:
        """All knobs, as the engine takes them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class UetKnobs(RivalKnobs):
    """Ultra Ethernet: any order, selective repeat, sprayed; a sender's window, a receiver's credit, or both."""

    ENGINE: ClassVar[str] = "uet"
    FABRIC: ClassVar[Mapping[str, Any]] = {
        "overhead_bytes": _WIRE + 12 + 44 + 4,  # PDS, SES standard header, CRC
        "control_bytes": _WIRE + 12 + 32,  # PDS acknowledgement with its extension
        "trimmed_bytes": _WIRE + 12 + 44 + 4,
        "last_hop_ecn": True,
    }

    spread: Spread = "mixed"
    """How entropy values are chosen."""
    entropies: int = 64
    """Entropy values of a connection in each plane, a power of two; switches hash each to a path."""
    ecn_penalty: int = 1
    """`bitmap`, `mixed`: turns an entropy value sits out for a mark..."""
    nack_penalty: int = 4
    """...for a trimmed packet..."""
    timeout_penalty: int = 15
    """...for a timeout..."""
    max_penalty: int = 15
    """...and at most (reference simulator)."""
    recycled_paths: int = 8
    """`reps`: entropy values remembered (REPS, Bonato et al. 2024)."""
    freeze_ns: int = 10_000_000
    """`reps`: after a timeout only remembered ones are used for so long."""
    explore_packets: int = 16
    """`reps`: packets on entropy values by chance after that."""
    sender_window: bool = True
    """Whether NSCC limits the sender."""
    receiver_credit: bool = False
    """Whether the receiver grants credit (RCCC)."""
    pacer_share: float = 0.99
    """Share of its line for which a receiver grants credit (reference simulator)."""
    credit_window_bytes: int = 0
    """Most credit a sender asks for, and what it sends before any comes; 0: 1.5 BDP."""
    credit_packets: int = 4
    """Packets granted at a time (UET default)."""
    idle_credit: bool = True
    """Whether a receiver whose line is idle grants unasked, up to one window (reference simulator)."""
    ack_bytes: int = 16_384
    """Received before an acknowledgement is due (UET 3.6.10)."""
    rto_ns: int = 0
    """Retransmission timeout; 0: 15 us and the time six queues of one BDP take to drain (reference simulator)."""
    span_packets: int = 0
    """From the oldest unacknowledged packet to the newest, at most; 0: four windows."""
    quick_adapt: bool = True
    """NSCC: whether the window falls at once to what was delivered."""
    max_cwnd_bytes: int = 0
    """NSCC: ceiling of the window; 0: 1.5 BDP."""
    initial_cwnd_bytes: int = 0
    """NSCC: first window; 0: the ceiling."""
    target_delay_ns: int = 0
    """NSCC: queueing delay aimed at; 0: 0.75 round trips with trimming, 1 without."""
    alpha: float = -1.0
    """NSCC: proportional gain, bytes per ns of headroom; -1: scaled from the reference network."""
    fi_bytes: float = -1.0
    """NSCC: fair increase; -1: scaled."""
    eta_bytes: float = -1.0
    """NSCC: increase in every period; -1: scaled."""
    fi_scale: float = -1.0
    """NSCC: fast increase; -1: scaled."""
    gamma: float = 0.8
    """NSCC: strength of a decrease."""
    max_md_jump: float = 0.5
    """NSCC: share of the window a decrease leaves at least."""
    delay_weight: float = 0.0125
    """NSCC: weight of one delay sample in the average."""
    qa_gate: int = 3
    """NSCC: quick adapt only where less than the ceiling shifted right by so much was delivered."""
    qa_threshold_ns: int = 0
    """NSCC: delay that sets quick adapt off; 0: off with trimming, four targets without."""
    qa_delay_needs_mark: bool = False
    """NSCC: whether such a delay has to come with a mark; for hosts that answer late by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NdpKnobs(RivalKnobs):
    """NDP: the first window blind, everything after it pulled by the receiver."""

    ENGINE: ClassVar[str] = "ndp"
    FABRIC: ClassVar[Mapping[str, Any]] = {
        "overhead_bytes": _WIRE + 20,
        "control_bytes": _WIRE + 20,
        "trimmed_bytes": _WIRE + 20,
    }

    spread: Spread = "permutation"
    """How paths are chosen; NDP takes each in turn, in a new order for each pass."""
    timeout_penalty: int = 15
    """Turns a path sits out after a timeout (NDP leaves out paths that do worse than the others)."""
    max_penalty: int = 255
    """And at most."""
    max_paths: int = 256
    """Paths of a connection in each plane, at most; these are distinct."""
    initial_packets: int = 0
    """Sent before the receiver has spoken; 0: one BDP, as NDP says."""
    pacer_share: float = 1.0
    """Share of its line that a receiver asks for."""
    rto_ns: int = 1_000_000
    """Retransmission timeout."""
    span_packets: int = 0
    """From the oldest unacknowledged packet to the newest, at most; 0: eight first windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpKnobs(RivalKnobs):
    """A TCP: one path by hash, selective acknowledgements, fast retransmit, a timeout with a floor."""

    ENGINE: ClassVar[str] = "tcp"
    FABRIC: ClassVar[Mapping[str, Any]] = {
        "overhead_bytes": 38 + 40 + 32,  # Ethernet, IPv6, TCP with timestamps
        "control_bytes": 38 + 40 + 56,  # with three selective blocks
        "trimmed_bytes": 38 + 40 + 32,
        "trimming": False,
        "last_hop_ecn": True,
    }

    answer_paths: int = 1
    growth: Growth = "cubic"
    """Window: Reno, CUBIC (RFC 9438) or DCTCP (RFC 8257)."""
    initial_packets: int = 10
    """First window (RFC 6928)."""
    max_packets: int = 0
    """Ceiling of the window; 0: eight BDP."""
    duplicate_threshold: int = 3
    """Later packets that make an earlier one lost."""
    min_rto_ns: int = 1_000_000
    """Floor of the retransmission timeout: 200 ms is what hosts come with, 1 ms what datacentres set."""
    max_rto_ns: int = 4_000_000_000
    """Where doubling stops."""
    ack_packets: int = 2
    """Received in order before an acknowledgement is due (RFC 5681)."""
    ack_delay_ns: int = 40_000
    """How long one waits at most."""
    ecn: bool = False
    """Whether Reno and CUBIC take a mark for a loss."""
    cubic_c: float = 0.4
    """CUBIC: growth, packets per s^3."""
    cubic_beta: float = 0.7
    """CUBIC: share of the window a loss leaves."""
    dctcp_g: float = 1 / 16
    """DCTCP: weight of one window in the share of marks."""

    def __post_init__(self) -> None:
        RivalKnobs.__post_init__(self)
        if self.initial_packets < 1:
            raise RivalSettingsError(f"initial_packets = {self.initial_packets}; valid: whole numbers from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoceKnobs(RivalKnobs):
    """RoCEv2 reliable connections: in order or again, a path by hash for each queue pair, PFC, DCQCN."""

    ENGINE: ClassVar[str] = "roce"
    FABRIC: ClassVar[Mapping[str, Any]] = {
        "overhead_bytes": _WIRE + 12 + 4,  # BTH, invariant CRC
        "control_bytes": _WIRE + 12 + 4 + 4,  # and AETH
        "trimmed_bytes": _WIRE + 12 + 4,
        "trimming": False,
        "last_hop_ecn": True,
    }

    answer_paths: int = 1
    queue_pairs: int = 1
    """Queue pairs of a connection, 1 to 16; a message is cut into as many parts, each hashed to a plane and a path."""
    pfc: bool = True
    """Whether switches pause who feeds them instead of dropping."""
    xoff_packets: int = 15
    """PFC: packets from one port in a switch's buffers from which on it is paused (reference simulator)."""
    xon_packets: int = 12
    """PFC: and at which it may go on."""
    dcqcn: bool = True
    """Whether marks slow senders down."""
    notify_interval_ns: int = 50_000
    """DCQCN: a receiver notifies a queue pair once in so long."""
    alpha_timer_ns: int = 55_000
    """DCQCN: alpha decays once in so long."""
    rate_timer_ns: int = 55_000
    """DCQCN: the rate rises once in so long..."""
    byte_counter_bytes: int = 10_000_000
    """...and once for so many bytes."""
    dcqcn_g: float = 1 / 256
    """DCQCN: weight of a notification in alpha."""
    fast_recovery: int = 5
    """DCQCN: rises half way back before the rate is raised beyond where it was."""
    additive_bytes_per_s: float = 0.0
    """DCQCN: additive increase; 0: a twentieth of the line (reference simulator)."""
    hyper_bytes_per_s: float = 0.0
    """DCQCN: hyper increase; 0: a tenth of the line."""
    min_bytes_per_s: float = 0.0
    """DCQCN: lowest rate; 0: a thousandth of the line."""
    ack_packets: int = 4
    """Received in order before an acknowledgement is due; the end of a message always asks for one."""
    window_packets: int = 0
    """Of one queue pair in flight at most; 0: no bound but the rate."""
    rto_ns: int = 67_108_864
    """Retransmission timeout: 4.096 us x 2^14, the default of the verbs tests."""
    recovery_ns: int = 0
    """From a sequence error until the NIC sends again; firmware of some takes 100 us and more."""
    halves_on_nack: bool = False
    """Whether a sequence error slows a sender down like a notification, as some NICs do where nothing pauses."""

    def __post_init__(self) -> None:
        RivalKnobs.__post_init__(self)
        if self.xon_packets >= self.xoff_packets:
            raise RivalSettingsError(
                f"xon_packets = {self.xon_packets}; valid: below xoff_packets = {self.xoff_packets}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRoutingKnobs(RivalKnobs):
    """Switches choose the emptiest port, the NIC the plane with the most room; in the manner of Spectrum-X.

    The vendor's control loops are not public; this keeps their shape and their published timescales.
    """

    ENGINE: ClassVar[str] = "adaptive-routing"
    FABRIC: ClassVar[Mapping[str, Any]] = {
        "overhead_bytes": _WIRE + 12 + 16 + 4,  # BTH, RETH in every packet, invariant CRC
        "control_bytes": _WIRE + 12 + 16 + 4,
        "trimmed_bytes": _WIRE + 12 + 16 + 4,
        "trimming": False,
        "remap_delay_ns": 3_000_000,  # leaving a plane in hardware; 1.08 s in software (Spectrum-X multiplane)
    }
    RECONVERGENCE_NS: ClassVar[float | None] = 3e6

    xoff_packets: int = 15
    """PFC: packets from one port in a switch's buffers from which on it is paused."""
    xon_packets: int = 12
    """PFC: and at which it may go on."""
    target_delay_ns: int = 0
    """Queueing delay a plane's window aims at; 0: 0.75 round trips."""
    additive_packets: float = 1.0
    """Gained per round trip below it."""
    decrease: float = 0.8
    """Strength of a decrease above it (Swift, Kumar et al. 2020)."""
    max_decrease: float = 0.5
    """Share of the window one decrease takes at most."""
    ack_packets: int = 4
    """Received before an acknowledgement is due."""
    failover_ns: int = 3_000_000
    """Silence of a plane until it is left: 3 ms in hardware, 1.08 s in software (Spectrum-X multiplane)."""
    retry_ns: int = 100_000_000
    """Until a plane that was left is tried again."""
    rto_ns: int = 1_000_000
    """Retransmission timeout of one packet on a plane that is not silent."""
    span_packets: int = 0
    """From the oldest unacknowledged packet to the newest, at most; 0: eight windows."""

    def __post_init__(self) -> None:
        RivalKnobs.__post_init__(self)
        if self.xon_packets >= self.xoff_packets:
            raise RivalSettingsError(
                f"xon_packets = {self.xon_packets}; valid: below xoff_packets = {self.xoff_packets}"
            )


_POWERS_OF_TWO = ("max_messages", "entropies")
_LIMITS: Mapping[str, tuple[float, float]] = {
    "answer_paths": (1, 64),
    "max_messages": (2, 4_096),
    "entropies": (1, 4_096),
    "max_paths": (1, 4_096),
    "recycled_paths": (1, 4_096),
    "max_penalty": (0, 255),
    "pacer_share": (0.01, 1.5),
    "credit_packets": (1, 4_096),
    "ack_bytes": (1, 2**24),
    "ack_packets": (1, 4_096),
    "initial_packets": (0, 65_536),
    "span_packets": (0, 2**24),
    "duplicate_threshold": (1, 1_000),
    "min_rto_ns": (1, 1e12),
    "max_rto_ns": (1, 1e12),
    "queue_pairs": (1, 16),
    "xoff_packets": (1, 1_000_000),
    "xon_packets": (0, 1_000_000),
    "notify_interval_ns": (0, 1e12),
    "alpha_timer_ns": (1, 1e12),
    "rate_timer_ns": (1, 1e12),
    "byte_counter_bytes": (1, 1e15),
    "dcqcn_g": (0, 1),
    "dctcp_g": (0, 1),
    "cubic_beta": (0.1, 1),
    "alpha": (-1, 1e6),
    "fi_bytes": (-1, 1e12),
    "eta_bytes": (-1, 1e12),
    "fi_scale": (-1, 1e3),
    "gamma": (0, 10),
    "max_md_jump": (0, 1),
    "max_decrease": (0, 1),
    "delay_weight": (0, 1),
    "qa_gate": (0, 30),
    "failover_ns": (1, 1e12),
}


def _limits(name: str) -> tuple[float, float]:
    return _LIMITS.get(name, (0, 1e15))


RIVALS: Mapping[str, RivalKnobs] = {
    "uet-oblivious": UetKnobs(spread="oblivious"),
    "uet-bitmap": UetKnobs(spread="bitmap"),
    "uet-reps": UetKnobs(spread="reps"),
    "uet-mixed": UetKnobs(spread="mixed"),
    "uet-rccc": UetKnobs(spread="oblivious", sender_window=False, receiver_credit=True),
    "ndp": NdpKnobs(),
    "tcp": TcpKnobs(),
    "roce": RoceKnobs(),
    "adaptive-routing": AdaptiveRoutingKnobs(),
}
"""Transports by the names that scenarios use."""

_MB = 1_000_000 / 8
DCQCN_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "htsim": {},
    "simai-100g": {
        "rate_timer_ns": 900_000,
        "additive_bytes_per_s": 50 * _MB,
        "hyper_bytes_per_s": 100 * _MB,
        "ecn_min_bytes": 400_000.0,
        "ecn_max_bytes": 1_600_000.0,
        "ecn_max_share": 0.2,
    },
    "simai-400g": {
        "rate_timer_ns": 900_000,
        "additive_bytes_per_s": 50 * _MB,
        "hyper_bytes_per_s": 100 * _MB,
        "ecn_min_bytes": 800_000.0,
        "ecn_max_bytes": 3_200_000.0,
        "ecn_max_share": 0.2,
    },
}
"""Settings of published simulations, as changes of the defaults.

SimAI marks a fifth of the packets at the upper depth and all of them beyond it. Its switches have 32 MB, far more than
these depths, so that marks come before pauses: give `xoff_packets` and the queues such room to see the same.
"""


def rival_knobs(name: str, changes: Mapping[str, Any] | None = None) -> RivalKnobs:
    """Returns the knobs of a transport, with some of them changed.

    Raises:
        RivalSettingsError: there is no such transport or knob, or a value cannot be used.
    """
    if name not in RIVALS:
        raise RivalSettingsError(f"transport = {quoted(name)}; valid: {', '.join(RIVALS)}")
    return RIVALS[name].updated(changes or {})
