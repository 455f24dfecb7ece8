"""Reading the fabric of a lab: the files and names the simulator reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farstep.fabric.errors import ConfigError, called, check_keys, names, quoted, read_toml
from farstep.fabric.topology.build import PRESETS, TOPOLOGY_KINDS, build_topology, preset
from farstep.fabric.topology.files import load_topology
from farstep.fabric.topology.model import Topology

__all__ = ["SCENARIO_KEYS", "load_fabric"]

SCENARIO_KEYS = ("fabric", "transport", "switch", "workload", "faults", "run")
"""Tables of a scenario; a lab reads `fabric`, and `farstep lab fault` the `faults`."""

_GRAPH_KEYS = ("switches", "nics", "links")


def load_fabric(source: str) -> Topology:
    """Builds the network that a file describes, or that has a name.

    Args:
        source: a scenario with a `[fabric]` table, a file of a network, or the name of a preset.

    Raises:
        ConfigError: naming file, key, value and what is valid.
    """
    path = Path(source)
    if source in PRESETS and not path.exists():
        return preset(source)
    if path.suffix.lower() != ".toml":
        if not path.exists() and not path.suffix:
            raise ConfigError(
                f"{quoted(source)}: no such file, and no such preset; presets: {names(PRESETS)}"
            )
        return load_topology(path)
    table = read_toml(path)
    if "fabric" not in table and any(key in table for key in _GRAPH_KEYS):
        return load_topology(path)
    where = called(path)
    try:
        check_keys(table, SCENARIO_KEYS)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    fabric = table.get("fabric")
    if not isinstance(fabric, Mapping):
        raise ConfigError(f"{where}: fabric: this table is required, with a kind: {names(TOPOLOGY_KINDS)}")
    parameters = dict(fabric)
    kind = parameters.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: fabric.kind: this key is required; valid: {names(TOPOLOGY_KINDS)}")
    if kind == "file" and isinstance(parameters.get("path"), str):
        parameters["path"] = str(path.parent / parameters["path"])
    try:
        return build_topology(kind, **parameters)
    except ConfigError as error:
        joint = ": " if kind == "file" else "."  # the mistake is in a file of its own
        raise ConfigError(f"{where}: fabric{joint}{error}") from error
    except TypeError as error:  # a value of a type the builder cannot even compare
        raise ConfigError(f"{where}: fabric: {error}") from error
