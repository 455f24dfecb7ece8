"""Names of the parts of a network, as faults and reports use them, and the links each means.

| Name | Means |
|---|---|
| `nic:12` | all links of a NIC |
| `nic-port:12/3` | both directions of one of its cables, counted by plane |
| `switch:t1/p0/5` | all links of switch 5 of tier 1 in plane 0 |
| `link:t0/p0/3-t1/p0/7` | all cables between two nodes, both directions; `->` for one direction, `#1` for one cable |
| `transceiver:t0/p0/3/1` | the cables in one cage of a node |
| `plane:2`, `site:east` | all links of a plane; all that touch a site |

`*` and `?` are wildcards in every part; `t0/*` means all switches of a tier. These are also the names that tables and
reports show.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError, names, quoted
from farstep.fabric.expected import expect
from farstep.fabric.topology.model import BoolArray, Int32Array, Topology, expect_topology

ELEMENT_KINDS = ("nic", "nic-port", "switch", "link", "transceiver", "plane", "site")
"""What a target may begin with."""

_SHOWN_MAX = 8


def resolve_links(topology: Topology, target: str) -> Int32Array:
    """Returns the directed links a target means, sorted; see `Topology.resolve`."""
    expect_topology("topology", topology)
    expect("target", target, str, "text, such as switch:t1/p0/5")
    kind, colon, rest = target.partition(":")
    if not colon or kind not in ELEMENT_KINDS:
        valid = ", ".join(f"{known}:..." for known in ELEMENT_KINDS)
        raise ConfigError(f"target = {quoted(target)}: names nothing of a network; valid: {valid}")
    try:
        links = _RESOLVERS[kind](topology, rest.strip())
    except ConfigError as error:
        raise ConfigError(f"target = {quoted(target)}: {error}") from None
    return np.unique(links).astype(np.int32)


def resolve_nodes(topology: Topology, target: str) -> Int32Array:
    """Returns the nodes that `nic:...` or `switch:...` means, sorted.

    Raises:
        ConfigError: the target cannot be read, names nothing of this network, or is no node.
    """
    expect_topology("topology", topology)
    expect("target", target, str, "text, such as switch:t1/p0/5")
    kind, _, rest = target.partition(":")
    if kind not in ("nic", "switch"):
        raise ConfigError(f"target = {quoted(target)}: is no node; valid: nic:..., switch:...")
    try:
        is_meant = _nodes(topology, f"nic/{rest}" if kind == "nic" else rest)
    except ConfigError as error:
        raise ConfigError(f"target = {quoted(target)}: {error}") from None
    return np.flatnonzero(is_meant).astype(np.int32)


def _of_nic(topology: Topology, text: str) -> npt.NDArray[Any]:
    return _touching(topology, _nodes(topology, f"nic/{text}"))


def _of_switch(topology: Topology, text: str) -> npt.NDArray[Any]:
    if text.startswith("nic/"):
        raise ConfigError("is no switch; write nic:NUMBER")
    return _touching(topology, _nodes(topology, text))


def _of_port(topology: Topology, text: str) -> npt.NDArray[Any]:
    nic, slash, port = text.partition("/")
    if not slash:
        raise ConfigError("write it as NIC/PORT, such as 12/3")
    is_meant = _nodes(topology, f"nic/{nic}")
    ports = topology.ports
    numbers = np.arange(len(ports.nic)) - ports.offset[ports.nic]
    candidates = is_meant[ports.nic]
    chosen = candidates & _matching(numbers, port)
    if not chosen.any():
        most = int(numbers[candidates].max(initial=-1))
        raise ConfigError(
            f"no such port {quoted(port)}; valid: 0 to {most}" if most >= 0 else "the NIC has no port"
        )
    return _both_ways(ports.link[chosen])


def _of_link(topology: Topology, text: str) -> npt.NDArray[Any]:
    cables, hash_mark, number = text.partition("#")
    separator = "->" if "->" in cables else "-"
    one, other = _ends(topology, cables, separator)
    sources, targets = _nodes(topology, one), _nodes(topology, other)
    links = np.flatnonzero(sources[topology.link_source] & targets[topology.link_target])
    if not len(links):
        raise ConfigError(
            f"no cable between {quoted(one)} and {quoted(other)}; {_neighbours(topology, sources)}"
        )
    if hash_mark:
        order = np.lexsort((links, topology.link_target[links], topology.link_source[links]))
        links = links[order]
        pair = topology.link_source[links].astype(np.int64) * topology.num_nodes + topology.link_target[links]
        starts = np.flatnonzero(np.r_[True, pair[1:] != pair[:-1]])
        numbers = np.arange(len(links)) - np.repeat(starts, np.diff(np.r_[starts, len(links)]))
        chosen = _matching(numbers, number)
        if not chosen.any():
            raise ConfigError(f'no such parallel cable "#{number}"; valid: #0 to #{numbers.max()}')
        links = links[chosen]
    return links if separator == "->" else _both_ways(links)


def _ends(topology: Topology, cables: str, separator: str) -> tuple[str, str]:
    """Splits the name of a link at the separator; a label may hold dashes of its own."""
    parts = cables.split(separator)
    splits = [
        (separator.join(parts[:at]).strip(), separator.join(parts[at:]).strip())
        for at in range(1, len(parts))
    ]
    splits = [split for split in splits if all(split)]
    if not splits:
        raise ConfigError("write it as NODE-NODE, such as t0/p0/3-t1/p0/7 or nic/12-t0/p0/0")
    for split in splits:
        if all(_is_node(topology, name) for name in split):
            return split
    return splits[0]


def _is_node(topology: Topology, text: str) -> bool:
    try:
        _nodes(topology, text)
    except ConfigError:
        return False
    return True


def _of_transceiver(topology: Topology, text: str) -> npt.NDArray[Any]:
    name, slash, cage = text.rpartition("/")
    if not slash:
        raise ConfigError("write it as NODE/CAGE, such as t0/p0/3/1 or nic/12/0")
    is_meant = _nodes(topology, name)
    links = topology.out_order[is_meant[topology.link_source[topology.out_order]]]
    source = topology.link_source[links]
    numbers = cage_numbers(topology)[links]
    chosen = _matching(numbers, cage) & (numbers >= 0)
    if not chosen.any():
        if numbers.max(initial=-1) < 0:
            raise ConfigError(
                f"{topology.node_name(int(source[0]))} has no transceiver: its cables are copper"
            )
        raise ConfigError(
            f"no such cage {quoted(cage)}; valid: {numbers[numbers >= 0].min()} to {numbers.max()}"
        )
    return _both_ways(links[chosen])


def _of_plane(topology: Topology, text: str) -> npt.NDArray[Any]:
    chosen = _matching(topology.link_plane, text)
    if not chosen.any():
        raise ConfigError(f"no such plane; known planes: {names(range(topology.num_planes))}")
    return np.flatnonzero(chosen)


def _of_site(topology: Topology, text: str) -> npt.NDArray[Any]:
    known = topology.site_names
    chosen = [number for number, site in enumerate(known) if fnmatchcase(site, text)]
    if not chosen:
        raise ConfigError(f"no such site; known sites: {names(known)}")
    return _touching(topology, np.isin(topology.node_site, chosen))


_RESOLVERS = {
    "nic": _of_nic,
    "nic-port": _of_port,
    "switch": _of_switch,
    "link": _of_link,
    "transceiver": _of_transceiver,
    "plane": _of_plane,
    "site": _of_site,
}


def cage_numbers(topology: Topology) -> Int32Array:
    """Returns for each directed link the cage of its source it leaves by, counted from 0; -1 for copper."""
    expect_topology("topology", topology)
    order = topology.out_order
    source = topology.link_source[order]
    cage = np.empty(topology.num_links, np.int32)
    cage[order] = (np.arange(len(order)) - topology.out_offset[source]) // topology.node_cage_ports[source]
    cage[~topology.link_is_optical] = -1
    return cage


def _nodes(topology: Topology, text: str) -> BoolArray:
    """Returns which nodes a name or pattern means.

    Raises:
        ConfigError: none.
    """
    if text in topology.labels or text == "*":
        chosen = np.full(topology.num_nodes, text == "*")
        chosen[topology.labels.get(text, 0)] = True
        return chosen
    parts = text.split("/")
    if len(parts) == 2 and parts[0] == "nic":
        chosen = np.zeros(topology.num_nodes, np.bool_)
        chosen[: topology.num_nics] = _matching(np.arange(topology.num_nics), parts[1])
        if not chosen.any():
            raise ConfigError(f"no such NIC {quoted(parts[1])}; valid: 0 to {topology.num_nics - 1}")
        return chosen
    if len(parts) == 2 and parts[1] == "*":
        parts = [parts[0], "*", "*"]
    if len(parts) != 3:
        raise ConfigError(
            f"{quoted(text)} is no node; write nic/NUMBER or tTIER/pPLANE/NUMBER, such as t0/p0/3 or t0/p0/*,"
            " or t0/* for a tier"
        )
    is_switch = np.arange(topology.num_nodes) >= topology.num_nics
    chosen = is_switch & _matching(topology.node_tier, parts[0], prefix="t")
    if not chosen.any():
        tiers = np.unique(topology.node_tier[is_switch])
        raise ConfigError(
            f"no such tier {quoted(parts[0])}; known tiers: {names(f't{tier}' for tier in tiers)}"
        )
    ahead = chosen & _matching(topology.node_plane, parts[1], prefix="p")
    if not ahead.any():
        planes = np.unique(topology.node_plane[chosen])
        listed = names("px" if plane < 0 else f"p{plane}" for plane in planes)
        raise ConfigError(f"no such plane {quoted(parts[1])} in that tier; known planes: {listed}")
    found = ahead & _matching(topology.node_number, parts[2])
    if not found.any():
        last = topology.node_number[ahead].max()
        raise ConfigError(f"no such switch {quoted(text)}; valid: {parts[0]}/{parts[1]}/0 to {last}")
    return found


def _matching(values: npt.NDArray[Any], pattern: str, *, prefix: str = "") -> BoolArray:
    """Returns which numbers a number or pattern with `*` and `?` means."""
    if pattern in ("*", f"{prefix}*"):
        return np.ones(len(values), np.bool_)
    digits = pattern.removeprefix(prefix)
    if digits.isascii() and digits.isdigit() and pattern.startswith(prefix):
        return np.asarray(values == int(digits)) if len(digits) < 10 else np.zeros(len(values), np.bool_)
    known = np.unique(values)
    texts = [f"{prefix}{'x' if value < 0 else value}" for value in known]
    return np.isin(values, known[[fnmatchcase(text, pattern) for text in texts]])


def _touching(topology: Topology, is_meant: BoolArray) -> npt.NDArray[Any]:
    return np.flatnonzero(is_meant[topology.link_source] | is_meant[topology.link_target])


def _both_ways(links: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([links, links ^ 1])


def _neighbours(topology: Topology, is_meant: BoolArray) -> str:
    node = int(np.flatnonzero(is_meant)[0])
    others = np.unique(topology.link_target[topology.out_links(node)])
    shown = [topology.node_name(int(other)) for other in others[:_SHOWN_MAX]]
    more = f" and {len(others) - _SHOWN_MAX} more" if len(others) > _SHOWN_MAX else ""
    return f"{topology.node_name(node)} is joined to {', '.join(shown)}{more}"
