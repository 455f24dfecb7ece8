"""Networks by name: what a scenario file's `[fabric]` table builds, and shapes of published clusters."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from farstep.fabric.errors import ConfigError, names, quoted
from farstep.fabric.topology.clos import clos, leaf_spine
from farstep.fabric.topology.dragonfly import dragonfly
from farstep.fabric.topology.fat_tree import fat_tree
from farstep.fabric.topology.files import load_topology
from farstep.fabric.topology.graphs import parse_graph
from farstep.fabric.topology.joined_sites import multi_site
from farstep.fabric.topology.model import Topology
from farstep.fabric.topology.rail import dual_tor, rail_optimised
from farstep.fabric.topology.torus import cube_torus, torus, torus_connections

_BUILDERS: Mapping[str, Callable[..., Topology]] = {
    "clos": clos,
    "fat-tree": fat_tree,
    "leaf-spine": leaf_spine,
    "rail-optimised": rail_optimised,
    "dual-tor": dual_tor,
    "torus": torus,
    "cube-torus": cube_torus,
    "dragonfly": dragonfly,
    "multi-site": multi_site,
}

TOPOLOGY_KINDS = (*_BUILDERS, "graph", "file", "preset")
"""Kinds that `build_topology` knows."""


def _tpu_v4() -> Topology:
    return cube_torus(64, torus_connections((4, 4, 4)))


def _lab(planes: int, leaves: int, spines: int, nics_per_leaf: int, port_mbps: float = 100) -> Topology:
    return leaf_spine(
        planes=planes,
        leaves=leaves,
        spines=spines,
        nics_per_leaf=nics_per_leaf,
        port_gbps=port_mbps / 1000,
        transceiver_gbps=port_mbps / 1000,
    )


PRESETS: Mapping[str, tuple[str, Callable[[], Topology]]] = {
    "mrc-131072": (
        "131,072 NICs of 8 x 100G, 512-port switches (MRC paper, section 2)",
        lambda: clos(radix=512),
    ),
    "mrc-32768": (
        "32,768 NICs of 4 x 200G, 256-port switches",
        lambda: clos(radix=256, planes=4, port_gbps=200.0),
    ),
    "mrc-512": ("512 NICs of 8 x 100G: the same ratios at radix 32", lambda: clos(radix=32)),
    "three-tier-65536": (
        "65,536 NICs of 800G, three tiers of 64-port switches",
        lambda: fat_tree(radix=64, port_gbps=800.0),
    ),
    "rail-2048": (
        "2,048 NICs of 400G on 8 rails, two tiers of 64-port switches",
        lambda: rail_optimised(2048),
    ),
    "hpn-7.0": ("one pod of Alibaba HPN 7.0: 15,360 NICs of 2 x 200G", dual_tor),
    "tpu-v4": ("64 cubes of 64 chips as a 16 x 16 x 16 torus", _tpu_v4),
    "tpu-v5p": (
        "8,960 chips as a 16 x 20 x 28 torus of 100 GB/s links",
        lambda: torus((16, 20, 28), link_gbps=800.0),
    ),
    "tpu-v5e": ("256 chips as a 16 x 16 torus of 50 GB/s links", lambda: torus((16, 16), link_gbps=400.0)),
    "lab-4": ("a lab of 4 NICs of 2 x 100M: 2 T0s and 2 T1s a plane", lambda: _lab(2, 2, 2, 2)),
    "lab-8": ("a lab of 8 NICs of 4 x 100M: 2 T0s and 4 T1s a plane", lambda: _lab(4, 2, 4, 4)),
    "lab-16": ("a lab of 16 NICs of 4 x 50M: 4 T0s and 4 T1s a plane", lambda: _lab(4, 4, 4, 4, 50)),
    "lab-32": ("a lab of 32 NICs of 8 x 10M: 4 T0s and 4 T1s a plane", lambda: _lab(8, 4, 4, 8, 10)),
}
"""Published shapes, and some for a lab on one machine: what each is, and what builds it."""


def build_topology(kind: str, /, **parameters: Any) -> Topology:
    """Builds a network by the name of its kind.

    Args:
        kind: one of `TOPOLOGY_KINDS`.
        parameters: arguments of the builder, as a scenario file gives them. `file` takes `path`, `preset` takes
            `name`, `graph` the tables of a file; `sites` of `multi-site` are tables with a `kind` of their own.

    Raises:
        ConfigError: there is no such kind or parameter, or a value cannot be used.

    Example:
        >>> build_topology("fat-tree", nics=128).num_switches
        80
    """
    if kind not in TOPOLOGY_KINDS:
        close = difflib.get_close_matches(str(kind), TOPOLOGY_KINDS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"kind = {quoted(kind)}: no such network; {hint}valid: {names(TOPOLOGY_KINDS)}")
    if kind == "graph":
        return parse_graph(parameters)
    if kind == "file":
        return _call(load_topology, kind, parameters)
    if kind == "preset":
        return _call(preset, kind, parameters)
    if kind == "multi-site":
        parameters = {**parameters, "sites": _sites(parameters.get("sites"))}
    return _call(_BUILDERS[kind], kind, parameters)


def preset(name: str) -> Topology:
    """Builds the network of a published cluster.

    Args:
        name: one of `PRESETS`.

    Raises:
        ConfigError: there is no such preset.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"name = {quoted(name)}: no such preset; valid: {names(PRESETS)}")
    return PRESETS[name][1]()


def _call(builder: Callable[..., Topology], kind: str, parameters: Mapping[str, Any]) -> Topology:
    known = inspect.signature(builder).parameters
    for key in parameters:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(
                f"{key}: a network of kind {quoted(kind)} has no such key; {hint}valid: {names(known)}"
            )
    missing = [key for key, item in known.items() if item.default is item.empty and key not in parameters]
    if missing:
        raise ConfigError(f"{missing[0]}: this key is required for a network of kind {quoted(kind)}")
    return builder(**parameters)


def _sites(sites: object) -> dict[str, Topology]:
    if not isinstance(sites, Mapping):
        raise ConfigError(f"sites = {quoted(sites)}: valid: a table per site")
    built: dict[str, Topology] = {}
    for name, site in sites.items():
        if isinstance(site, Topology):
            built[name] = site
            continue
        if not isinstance(site, Mapping) or not isinstance(site.get("kind"), str):
            raise ConfigError(f"sites.{name}: valid: a table with a kind: {names(TOPOLOGY_KINDS)}")
        try:
            built[name] = build_topology(site["kind"], **{key: site[key] for key in site if key != "kind"})
        except ConfigError as error:
            raise ConfigError(f"sites.{name}: {error}") from None
    return built
