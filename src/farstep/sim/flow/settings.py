"""Settings of the flow level, and what they are for each transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from farstep.fabric.errors import quoted
from farstep.sim.packet_knobs import engine_changes
from farstep.sim.rivals import RIVALS, RivalKnobs
from farstep.sim.transports import Switch, Transport

__all__ = ["TRANSPORTS", "FlowSettings", "FlowSettingsError", "ignored_knobs", "settings_for", "settings_of"]

NS_PER_US = 1000.0

Spreading = Literal["spray", "hash"]
Failover = Literal["exclude", "reconverge", "none"]
LossResponse = Literal["selective", "go_back_n"]
Done = Literal["receiver", "sender"]


class FlowSettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and what would be valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """What the flow level knows of a transport.

    Raises:
        FlowSettingsError: a value cannot be used.
    """

    payload_bytes: int = 4096
    """Payload of a full packet."""
    overhead_bytes: int = 166
    """Everything else a packet takes on the wire, preamble and gap included (mrc: IPv6, SRv6, UDP, BTH, iCRC)."""
    ack_bytes: int = 178
    """Wire size of an acknowledgement."""
    ack_every_bytes: int | None = 16_384
    """Payload after which receivers acknowledge; None: acknowledgements take nothing of the wire."""
    host_latency_ns: float = 0.0
    """Added to each flow: from posting it to its first bit, and from its last bit to its completion."""
    completion: Done = "receiver"
    """Whether a flow is done when its last byte arrives, or when the sender has the acknowledgement."""
    spreading: Spreading = "spray"
    """`spray`: over all paths evenly; `hash`: over `paths` paths that a hash chooses."""
    paths: int = 1
    """With `hash`: paths of a flow, such as the queue pairs of RoCE."""
    is_coupled: bool = False
    """With several hashed paths: True if all carry the same at any time (entropy values of one connection), False
    if each path carries its part of the bytes by itself (queue pairs)."""
    failover: Failover = "exclude"
    """What happens to paths over a dead link: `exclude`: the sender leaves them out, of its own observation;
    `reconverge`: routing finds others; `none`: packets are lost until the link is back."""
    detection_ns: float = 30_000.0
    """With `exclude`: from a link's death to the last packet sent over it (mrc: a few tens of microseconds)."""
    restore_ns: float = 5_000_000.0
    """With `exclude`: from a link's repair until it is used again (mrc: 5 probes, 1 ms apart)."""
    remap_ns: float = 0.0
    """With `exclude`: the same as `detection_ns` for links of NICs whose end is signalled, if it is longer.
    With `rival`: until a NIC that is told leaves a dead port, or takes it again; its peers need twice as long."""
    reconvergence_ns: float = 1_000_000_000.0
    """With `reconverge`: from a link's death or repair to new routes."""
    balancing: float = 1.0
    """How far senders turn from links that run below their nominal rate: a path counts with the product of the parts
    left of its links' rates, to this power. 0: not at all."""
    loss_response: LossResponse = "selective"
    """What a lost packet costs: itself (`selective`), or all sent since (`go_back_n`)."""
    window_bytes: int | None = None
    """Most bytes in flight of one flow; None: as many as the path takes."""
    window_rtts: float = 1.5
    """Window in bandwidth-delay products, by which `go_back_n` repeats packets."""
    collisions: float = 1.0
    """Factor on the queues that sprayed packets meet by chance, see `farstep.sim.flow.collisions`."""
    backoff: float = 6.0
    """Packets a sender of sprayed packets holds back for each that found a queue full, in the long run."""
    unfairness: float = 0.0
    """How unequal flows into one NIC stay: standard deviation of the logarithms of their rates, drawn for each."""
    is_noisy: bool = True
    """Whether lost times are drawn around their mean, from the seed."""
    queue_packets: float | None = None
    """Longest queue at a hop, from which on packets are trimmed; None: a bandwidth-delay product of the longest
    path."""
    rival: RivalKnobs | None = None
    """Knobs of a transport whose flows on single paths are followed step by step, with the queues in front of links:
    `RoceKnobs` or `TcpKnobs`; None: rates are fair at once."""
    ecn_min_bytes: float | None = None
    """With `rival`: queue from which on packets are marked now and then; None: 0.2 bandwidth-delay products..."""
    ecn_max_bytes: float | None = None
    """...and from which on all are; None: 0.8."""
    resolution_ns: float | None = None
    """Events closer together than this share one computation of rates; their times stay exact. None: a packet's
    time on the fastest link, or 1/500 of the time of the shortest flow, if it is longer."""

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= low:
                raise FlowSettingsError(f"{name} = {quoted(value)}; valid: a number from {low} on")
        for name, hint in get_type_hints(type(self)).items():
            valid = get_args(hint)
            value = getattr(self, name)
            if valid and all(isinstance(choice, str) for choice in valid) and value not in valid:
                raise FlowSettingsError(f"{name} = {quoted(value)}; valid: {', '.join(valid)}")

    @property
    def answer_share(self) -> float:
        """Bytes on the wire that answer a byte of data on the wire."""
        if self.ack_every_bytes is None:
            return 0.0
        every = max(self.ack_every_bytes, self.payload_bytes)
        return self.ack_bytes / (every * (1.0 + self.overhead_bytes / self.payload_bytes))

    def updated(self, changes: Mapping[str, Any]) -> FlowSettings:
        """Returns these settings with some of them changed.

        Raises:
            FlowSettingsError: a name is not a setting, or its value cannot be used.
        """
        known = [item.name for item in fields(self)]
        for name in changes:
            if name not in known:
                raise FlowSettingsError(f"{name}: no setting of the flow level; valid: {', '.join(known)}")
        return replace(self, **changes)


_LOWEST: dict[str, float] = {
    "payload_bytes": 1,
    "overhead_bytes": 0,
    "ack_bytes": 0,
    "ack_every_bytes": 1,
    "host_latency_ns": 0,
    "paths": 1,
    "detection_ns": 0,
    "restore_ns": 0,
    "remap_ns": 0,
    "reconvergence_ns": 0,
    "window_bytes": 1,
    "window_rtts": 0,
    "balancing": 0,
    "collisions": 0,
    "backoff": 0,
    "unfairness": 0,
    "queue_packets": 1,
    "resolution_ns": 0,
}


def _wire(name: str) -> dict[str, Any]:
    """Sizes of a transport's packets, which are those of the packet engine."""
    fabric = RIVALS[name].FABRIC
    return {"overhead_bytes": fabric["overhead_bytes"], "ack_bytes": fabric["control_bytes"]}


def _answers(name: str, packets: int) -> dict[str, Any]:
    return {**_wire(name), "ack_every_bytes": packets * FlowSettings().payload_bytes}


TRANSPORTS: Mapping[str, FlowSettings] = {
    "mrc": FlowSettings(balancing=0.8, collisions=0.34, backoff=1.0, unfairness=0.2),
    "uet-oblivious": FlowSettings(
        **_wire("uet-oblivious"), failover="none", balancing=0.5, collisions=1.1, unfairness=0.32
    ),
    "uet-reps": FlowSettings(
        **_wire("uet-reps"), detection_ns=100_000.0, balancing=0.8, collisions=0.92, unfairness=0.35
    ),
    "uet-bitmap": FlowSettings(**_wire("uet-bitmap"), balancing=0.8, collisions=0.7, unfairness=0.33),
    "uet-mixed": FlowSettings(**_wire("uet-mixed"), balancing=0.8, collisions=0.7, unfairness=0.33),
    "uet-rccc": FlowSettings(**_wire("uet-rccc"), failover="none", balancing=0.5, collisions=1.15),
    "ndp": FlowSettings(
        **_answers("ndp", 1),
        failover="none",
        balancing=0.5,
        collisions=0.55,
    ),
    "adaptive-routing": FlowSettings(
        **_answers("adaptive-routing", 4),
        failover="reconverge",
        reconvergence_ns=3_000_000.0,
        loss_response="go_back_n",
        collisions=0.5,
        unfairness=0.19,
    ),
    "roce": FlowSettings(
        **_answers("roce", 4),
        spreading="hash",
        failover="reconverge",
        loss_response="go_back_n",
        rival=RIVALS["roce"],
    ),
    "tcp": FlowSettings(**_answers("tcp", 2), spreading="hash", failover="reconverge", rival=RIVALS["tcp"]),
    "ideal": FlowSettings(
        ack_every_bytes=None, collisions=0.0, backoff=0.0, detection_ns=0.0, restore_ns=0.0
    ),
}
"""Settings by transport.

What is measured and not derived: `collisions` of the sprayed ones, on a permutation of 128 NICs of 2 MB each;
`backoff`, on the same of 20 MB, once for `mrc` and once for all others; `balancing` of the UET ones, on the first with
four slow links. They hold for every other case.
"""


def settings_for(transport: str, changes: Mapping[str, Any] | None = None) -> FlowSettings:
    """Returns the settings of a transport, with some of them changed.

    Raises:
        FlowSettingsError: there is no such transport or setting.
    """
    if transport not in TRANSPORTS:
        raise FlowSettingsError(f"transport = {quoted(transport)}; valid: {', '.join(TRANSPORTS)}")
    return TRANSPORTS[transport].updated(changes or {})


_KNOBS: Mapping[str, str] = {
    "mtu_bytes": "payload_bytes",
    "overhead_bytes": "overhead_bytes",
    "host_latency_us": "host_latency_ns",
    "window_bytes": "window_bytes",
    "remap_us": "remap_ns",
    "sack_bytes": "ack_every_bytes",
    "reconvergence_us": "reconvergence_ns",
}
"""Knobs of a scenario that have a setting of their own here."""


def settings_of(transport: Transport, switch: Switch | None = None) -> FlowSettings:
    """Reads the settings off a scenario's transport and switches.

    Raises:
        FlowSettingsError: a value cannot be used.
    """
    changes: dict[str, Any] = {}
    for knob, value in transport.knobs.items():
        if knob in _KNOBS:
            name = _KNOBS[knob]
            changes[name] = value * NS_PER_US if name.endswith("_ns") else value
    found = settings_for(transport.name, changes)
    if transport.probe_interval_us is not None or transport.restore_probes is not None:
        interval = (transport.probe_interval_us or _PROBE_INTERVAL_US) * NS_PER_US
        found = replace(found, restore_ns=interval * (transport.restore_probes or _RESTORE_PROBES))
    if switch is not None and switch.queue_bytes is not None:
        packet = found.payload_bytes + found.overhead_bytes
        found = replace(found, queue_packets=max(1.0, switch.queue_bytes / packet))
    return found if found.rival is None else _with_rival(found, found.rival, transport, switch)


def _with_rival(
    found: FlowSettings, rival: RivalKnobs, transport: Transport, switch: Switch | None
) -> FlowSettings:
    """Takes over what the packet engine reads of a transport that is followed step by step."""
    _, engine, _ = engine_changes(transport, Switch() if switch is None else switch)
    own = {item.name for item in fields(rival)}
    knobs = rival.updated({name: value for name, value in engine.items() if name in own})
    changes: dict[str, Any] = {name: engine[name] for name in _MARKS if engine.get(name, -1.0) >= 0}
    share = engine.get("ecn_max_share", 1.0)
    if 0.0 < share < 1.0 and len(changes) == len(_MARKS):
        low, high = (changes[name] for name in _MARKS)
        changes["ecn_max_bytes"] = low + (high - low) / share  # the same line, on to certainty
    return replace(found, rival=knobs, paths=getattr(knobs, "queue_pairs", 1), **changes)


_PROBE_INTERVAL_US = 1000.0
_RESTORE_PROBES = 5


def ignored_knobs(transport: Transport, switch: Switch | None = None) -> list[str]:
    """Names what a scenario sets and the flow level has no use for."""
    used, engine, at_switch = {*_KNOBS, "probe_interval_us", "restore_probes"}, set(), {"queue_bytes"}
    rival = TRANSPORTS[transport.name].rival
    if rival is not None:
        used = {"mtu_bytes", "overhead_bytes", "host_latency_us", "reconvergence_us", "remap_us", "rto_us"}
        used |= {"queue_pairs", "pfc", "dcqcn"} if transport.name == "roce" else set()
        engine = {"preset", *_MARKS, *(item.name for item in fields(rival))}
        at_switch |= set(_MARKS)
    unused = [f"transport.{knob}" for knob in transport.knobs if knob not in used]
    unused += [f"transport.engine.{name}" for name in transport.engine if name not in engine]
    if switch is not None:
        unused += [f"switch.{knob}" for knob in switch.knobs if knob not in at_switch]
    return unused


_MARKS = ("ecn_min_bytes", "ecn_max_bytes")
