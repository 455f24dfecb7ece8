"""Networks from files: TOML and JSON descriptions, and htsim's `.topo` files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from farstep.fabric.errors import ConfigError, called, names, quoted, read_toml
from farstep.fabric.expected import expect, expect_path
from farstep.fabric.topology.cabling import ports_per_cage
from farstep.fabric.topology.clos import TRANSCEIVER_GBPS
from farstep.fabric.topology.folded_clos import FoldedClos, TierLinks, build_folded_clos
from farstep.fabric.topology.graphs import parse_graph
from farstep.fabric.topology.model import Topology, expect_topology

SUFFIXES = (".toml", ".json", ".topo")
"""Endings of files that hold a network."""

_HEADER = ("nodes", "tiers", "podsize")
_TIER_KEYS = (
    "downlink_speed_gbps",
    "radix_down",
    "radix_up",
    "downlink_latency_ns",
    "switch_latency_ns",
    "bundle",
    "oversubscribed",
    "queue_up",
    "queue_down",
)


def load_topology(path: str | Path) -> Topology:
    """Reads a network from a file.

    Args:
        path: a `.toml` or `.json` file of `[[switches]]`, `[[nics]]` and `[[links]]`, or a `.topo` file of htsim.

    Raises:
        ConfigError: the file cannot be read or holds no network.
    """
    expect_path("path", path)
    suffix = Path(path).suffix.lower()
    if suffix == ".toml":
        return parse_graph(read_toml(path), source=str(path))
    if suffix not in SUFFIXES:
        raise ConfigError(f"{called(path)}: is no file of a network; valid endings: {names(SUFFIXES)}")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    if suffix == ".topo":
        return parse_htsim_topology(text, source=str(path))
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: is a JSON {type(table).__name__}; valid: an object")
    return parse_graph(table, source=str(path))


def parse_htsim_topology(text: str, *, source: str = "topology") -> Topology:
    """Builds the fat tree or leaf-spine network that a `.topo` file of htsim describes.

    Nodes and links have other numbers than in htsim, and the same graph. Queue sizes are settings of a simulation
    here and are left out.

    Raises:
        ConfigError: naming the line, or the values that do not fit each other.
    """
    expect("text", text, str, "what a .topo file holds")
    header, tiers = _read_lines(text, source)
    for key in _HEADER:
        if key not in header:
            raise ConfigError(f"{source}: {key}: this key is required")
    nodes, num_tiers, pod = (_whole(source, key, header[key]) for key in _HEADER)
    if num_tiers not in (2, 3) or sorted(tiers) != list(range(num_tiers)):
        raise ConfigError(f"{source}: tiers = {num_tiers}: valid: 2 or 3, with a section for each from 0 on")
    down = [
        _whole(source, f"tier {tier} radix_down", _get(tiers, tier, "radix_down", source)) for tier in tiers
    ]
    up = [_uplinks(tiers, tier, down[tier], source) for tier in range(num_tiers - 1)]
    bundle = [_whole(source, "bundle", tiers[tier].get("bundle", 1)) for tier in range(num_tiers)]
    pods = _ratio(source, "nodes", nodes, "podsize", pod)
    t0s = _ratio(source, "podsize", pod, "tier 0 radix_down", down[0])
    t1s = _ratio(source, "tier 0 radix_up", up[0], "tier 1 bundle", bundle[1])
    if t0s * bundle[1] != down[1]:
        raise ConfigError(
            f"{source}: tier 1 radix_down = {down[1]}: {t0s} tier 0 switches a pod with bundles of {bundle[1]} need"
            f" {t0s * bundle[1]}"
        )
    cores = (
        _ratio(source, "links to tier 2", pods * t1s * up[1], "tier 2 radix_down", down[2])
        if num_tiers == 3
        else 0
    )
    if num_tiers == 2 and pods > 1:
        raise ConfigError(f"{source}: podsize = {pod}: two tiers are one pod; valid: {nodes}")
    if cores and t1s * up[1] % cores:
        raise ConfigError(
            f"{source}: tier 2 radix_down = {down[2]}: {t1s * up[1]} links a pod do not spread evenly"
        )
    rates = [float(_get(tiers, tier, "downlink_speed_gbps", source)) for tier in range(num_tiers)]
    shape = FoldedClos(
        num_planes=1,
        num_pods=pods,
        t0s_per_pod=t0s,
        t0_down=down[0],
        t0_up=up[0],
        t1s_per_pod=t1s,
        t1_up=up[1] if num_tiers == 3 else 0,
        num_t2=cores,
        tiers=tuple(
            TierLinks(rate_gbps=rates[tier], latency_ns=float(tiers[tier].get("downlink_latency_ns", 1000.0)))
            for tier in range(num_tiers)
        ),
        switch_latency_ns=tuple(
            float(tiers[tier].get("switch_latency_ns", 0.0)) for tier in range(num_tiers)
        ),
        nic_cage_ports=ports_per_cage(TRANSCEIVER_GBPS, rates[0]),
        switch_cage_ports=ports_per_cage(TRANSCEIVER_GBPS, rates[1]),
    )
    name = Path(source).stem if source.endswith(".topo") else source
    return build_folded_clos(shape, name=name, kind="htsim", parameters={"file": name, "nics": nodes})


def _read_lines(text: str, source: str) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    header: dict[str, float] = {}
    tiers: dict[int, dict[str, float]] = {}
    section = header
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}: line {number}"
        if len(words) != 2:
            raise ConfigError(f"{where}: {quoted(line.strip())}: valid: a key and a number")
        key = words[0].lower()
        try:
            value = float(words[1])
        except ValueError:
            raise ConfigError(f"{where}: {words[0]} = {words[1]}: valid: a number") from None
        if not 0 <= value <= 1e12:
            raise ConfigError(f"{where}: {words[0]} = {words[1]}: valid: 0 to 10^12")
        if key == "tier":
            if value not in (0.0, 1.0, 2.0) or int(value) in tiers:
                raise ConfigError(f"{where}: tier {words[1]}: valid: 0, 1 and 2, each once")
            section = tiers.setdefault(int(value), {})
            continue
        valid = _HEADER if section is header else _TIER_KEYS
        if key not in valid:
            raise ConfigError(f"{where}: no key {words[0]} here; valid keys: {names(valid)}")
        section[key] = value
    return header, tiers


def _get(tiers: dict[int, dict[str, float]], tier: int, key: str, source: str) -> float:
    if key not in tiers[tier]:
        raise ConfigError(f"{source}: tier {tier} {key}: this key is required")
    value = tiers[tier][key]
    if value <= 0:
        raise ConfigError(f"{source}: tier {tier} {key} = {value:g}: valid: above 0")
    return value


def _uplinks(tiers: dict[int, dict[str, float]], tier: int, down: int, source: str) -> int:
    """Returns the uplinks given, or else the downlinks divided by the oversubscription."""
    if "radix_up" in tiers[tier]:
        return _whole(source, f"tier {tier} radix_up", tiers[tier]["radix_up"])
    factor = _whole(source, f"tier {tier} oversubscribed", tiers[tier].get("oversubscribed", 1.0))
    return _ratio(source, f"tier {tier} radix_down", down, "oversubscribed", factor)


def _whole(source: str, key: str, value: float) -> int:
    if value != int(value) or not 1 <= value <= 2_000_000:
        raise ConfigError(f"{source}: {key} = {value:g}: valid: a whole number from 1 to 2000000")
    return int(value)


def _ratio(source: str, key: str, value: int, by: str, divisor: int) -> int:
    if value % divisor:
        raise ConfigError(f"{source}: {key} = {value}: valid: a multiple of {by} = {divisor}")
    return value // divisor


def describe(topology: Topology) -> dict[str, Any]:
    """Returns a network as the table of a file, which `load_topology` reads back."""
    expect_topology("topology", topology)
    names_of = [f"s{node}" for node in range(topology.num_nics, topology.num_nodes)]
    for label, node in topology.labels.items():
        if node >= topology.num_nics:
            names_of[node - topology.num_nics] = label
    first = topology.num_nics
    switches = [
        {
            "name": names_of[node - first],
            "tier": int(topology.node_tier[node]),
            "plane": int(topology.node_plane[node]),
            "site": topology.site_names[topology.node_site[node]],
            "group": int(topology.node_group[node]),
            "latency_ns": float(topology.switch_latency_ns[node]),
        }
        for node in range(first, topology.num_nodes)
    ]
    ports = topology.ports
    nics = [
        {
            "switches": [names_of[switch - first] for switch in ports.switch[low:high]],
            "site": topology.site_names[topology.node_site[nic]],
            "group": int(topology.node_group[nic]),
            "rate_gbps": float(topology.link_rate_gbps[ports.link[low]]),
            "latency_ns": float(topology.link_latency_ns[ports.link[low]]),
        }
        for nic, (low, high) in enumerate(zip(ports.offset[:-1], ports.offset[1:], strict=True))
    ]
    links = [
        {
            "between": [
                names_of[topology.link_source[link] - first],
                names_of[topology.link_target[link] - first],
            ],
            "rate_gbps": float(topology.link_rate_gbps[link]),
            "latency_ns": float(topology.link_latency_ns[link]),
            "plane": int(topology.link_plane[link]),
            "cost": int(topology.link_cost[link]),
            "optical": bool(topology.link_is_optical[link]),
        }
        for link in range(0, topology.num_links, 2)
        if topology.link_source[link] >= first
    ]
    return {"name": topology.name, "switches": switches, "nics": nics, "links": links}
