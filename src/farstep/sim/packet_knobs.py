"""What the packet engine calls the transports of a scenario and their knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farstep.fabric.errors import ConfigError, names, quoted
from farstep.sim.rivals import DCQCN_PRESETS, RIVALS, RivalSettingsError
from farstep.sim.transports import Switch, Transport

__all__ = ["PACKET_TRANSPORTS", "engine_changes"]

NS_PER_US = 1000

PACKET_TRANSPORTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mrc": ("mrc", {}),
    **{name: (knobs.ENGINE, {**knobs.FABRIC, **knobs.values()}) for name, knobs in RIVALS.items()},
}
"""Transport of the engine, and the settings that make it the one named."""

_Knob = tuple[str, float]
"""Name in the engine, and what a value is multiplied by; 0: taken as it is."""

_EVERYWHERE: Mapping[str, _Knob] = {
    "mtu_bytes": ("mtu_bytes", 1),
    "overhead_bytes": ("overhead_bytes", 1),
    "host_latency_us": ("host_latency_ns", NS_PER_US),
    "remap_us": ("remap_delay_ns", NS_PER_US),
}

_KNOBS: Mapping[str, Mapping[str, _Knob]] = {
    "mrc": {
        "evs": ("active_evs_per_plane", 1),
        "backup_evs": ("backup_evs_per_plane", 1),
        "probe_interval_us": ("probe_interval_ns", NS_PER_US),
        "restore_probes": ("restore_successes", 1),
        "skip_passes": ("skip_passes", 1),
        "sack_bytes": ("sack_threshold_bytes", 1),
        "mpr_packets": ("mpr", 1 / 128),
        "rto_us": ("rto_base_ns", NS_PER_US),
        "target_delay_us": ("target_delay_ns", NS_PER_US),
        "window_bytes": ("max_cwnd_bytes", 1),
        "quick_adapt": ("quick_adapt", 0),
        "capacity_share": ("capacity_share", 0),
    },
    "uet": {
        "evs": ("entropies", 1),
        "sack_bytes": ("ack_bytes", 1),
        "rto_us": ("rto_ns", NS_PER_US),
        "target_delay_us": ("target_delay_ns", NS_PER_US),
        "window_bytes": ("max_cwnd_bytes", 1),
        "quick_adapt": ("quick_adapt", 0),
        "reconvergence_us": ("reconvergence_ns", NS_PER_US),
    },
    "ndp": {
        "evs": ("max_paths", 1),
        "rto_us": ("rto_ns", NS_PER_US),
        "reconvergence_us": ("reconvergence_ns", NS_PER_US),
    },
    "tcp": {"rto_us": ("min_rto_ns", NS_PER_US), "reconvergence_us": ("reconvergence_ns", NS_PER_US)},
    "roce": {
        "queue_pairs": ("queue_pairs", 1),
        "pfc": ("pfc", 0),
        "dcqcn": ("dcqcn", 0),
        "rto_us": ("rto_ns", NS_PER_US),
        "reconvergence_us": ("reconvergence_ns", NS_PER_US),
    },
    "adaptive-routing": {
        "reconvergence_us": ("reconvergence_ns", NS_PER_US),
        "rto_us": ("rto_ns", NS_PER_US),
        "target_delay_us": ("target_delay_ns", NS_PER_US),
    },
}

_SWITCH: Mapping[str, str] = {
    "queue_bytes": "queue_limit_bytes",
    "last_hop_queue_bytes": "last_hop_limit_bytes",
    "ecn_min_bytes": "ecn_min_bytes",
    "ecn_max_bytes": "ecn_max_bytes",
    "trimming": "trimming",
    "last_hop_ecn": "last_hop_ecn",
}


def engine_changes(transport: Transport, switch: Switch) -> tuple[str, dict[str, Any], list[str]]:
    """Translates a scenario's transport and switches.

    Returns:
        Transport of the engine, settings that differ from its own, and keys of the scenario it has no use for.

    Raises:
        ConfigError: the packet level has no such transport.
    """
    if transport.name not in PACKET_TRANSPORTS:
        raise ConfigError(
            f"transport.name = {quoted(transport.name)}: is none of the packet level; valid: {names(PACKET_TRANSPORTS)}"
        )
    name, base = PACKET_TRANSPORTS[transport.name]
    known = {**_EVERYWHERE, **_KNOBS[name]}
    changes: dict[str, Any] = dict(base)
    if transport.name in RIVALS and (delay_ns := RIVALS[transport.name].RECONVERGENCE_NS) is not None:
        changes["reconvergence_ns"] = delay_ns
    ignored = []
    for knob, value in transport.knobs.items():
        if knob not in known:
            ignored.append(f"transport.{knob}")
            continue
        key, factor = known[knob]
        changes[key] = value if factor == 0 else round(value * factor)
    engine = dict(transport.engine)
    if name == "roce":
        changes.update(_preset(engine.pop("preset", "htsim")))
    changes.update({_SWITCH[knob]: value for knob, value in switch.knobs.items()})
    changes.update(engine)
    if transport.name in RIVALS:
        _check(transport.name, changes)
    return name, changes, ignored


def _preset(name: Any) -> Mapping[str, Any]:
    if name not in DCQCN_PRESETS:
        raise ConfigError(
            f"transport.engine.preset = {quoted(name)}: no such preset; valid: {names(DCQCN_PRESETS)}"
        )
    return DCQCN_PRESETS[name]


def _check(transport: str, changes: Mapping[str, Any]) -> None:
    """Refuses knobs of a rival that it cannot use, before an engine is built for it."""
    own = RIVALS[transport].values()
    try:
        RIVALS[transport].updated({name: value for name, value in changes.items() if name in own})
    except RivalSettingsError as error:
        raise ConfigError(f"transport.engine.{error}") from None
