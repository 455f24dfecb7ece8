"""Sites and the paths between them, as data.

A network description is written once and used by the path emulator, the namespace lab and the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from farstep.fabric.channels import Channel, ChannelState, bytes_in_ms
from farstep.fabric.errors import ConfigError, describe_validation_error, names, quoted, read_toml
from farstep.fabric.expected import expect_list, expect_whole
from farstep.fabric.tables import Table

SITES_MAX = 64
"""Sites of one description; the emulator opens a socket per endpoint port and site."""

PATHS_MAX = 4096
"""Paths of one description: more than one machine emulates usefully."""

RATE_MBPS_MAX = 1_600_000.0
"""Fastest Ethernet port in sight (1.6 Tb/s); more is a slip of the unit."""

DELAY_MS_MAX = 10_000.0
"""One way; a geostationary hop is 240 ms, so ten seconds is a slip of the unit."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")

Percent = Annotated[float, Field(ge=0.0, le=100.0)]
RateMbps = Annotated[float, Field(gt=0.0, le=RATE_MBPS_MAX)]
DelayMs = Annotated[float, Field(ge=0.0, le=DELAY_MS_MAX)]
KiloBytes = Annotated[float, Field(gt=0.0, le=1e9)]


def check_name(value: str) -> str:
    """Accepts a name of a site, path or fault.

    Raises:
        ValueError: the name could not be told from a pattern or a direction.
    """
    if not _NAME.fullmatch(value):
        raise ValueError("a name has letters, digits, _ - . and :, and starts with a letter, a digit or _")
    return value


class EmulatedPath(Table):
    """One path between two sites, with the same figures in both directions.

    Both directions have queues, serialisers and random draws of their own.
    """

    name: str
    """Unique name, used by fault scripts, statistics and events."""
    between: tuple[str, str] | None = None
    """The two sites; may be left out when the network has exactly two."""
    plane: int = Field(default=0, ge=0, le=255)
    """Plane the path belongs to; paths of one plane between two sites share traffic by source port."""
    rate_mbps: RateMbps | None = None
    """Rate in 10^6 bit/s per direction, counting payload, UDP and IP headers; left out: unlimited."""
    delay_ms: DelayMs = 0.0
    """One-way propagation delay."""
    jitter_ms: DelayMs = 0.0
    """Largest additional delay of a packet; drawn uniformly, order kept."""
    loss_percent: Percent = 0.0
    """Packets lost at random."""
    loss_burst_packets: float = Field(default=1.0, ge=1.0, le=1e6)
    """Mean length of a run of lost packets; 1 makes losses independent."""
    reorder_percent: Percent = 0.0
    """Packets held back by `reorder_delay_ms`, so that later ones overtake them."""
    reorder_delay_ms: DelayMs = 1.0
    """How long a reordered packet is held back."""
    duplicate_percent: Percent = 0.0
    """Packets delivered twice."""
    corrupt_percent: Percent = 0.0
    """Packets with one flipped payload bit."""
    ecn_threshold_kb: KiloBytes | None = None
    """Queue in kB (1000 B) above which ECN-capable packets are marked; left out: never."""
    ecn_threshold_ms: DelayMs | None = None
    """The same threshold as time at `rate_mbps`."""
    queue_limit_kb: KiloBytes | None = None
    """Longest queue in kB (1000 B); left out: 50 ms at `rate_mbps`, at least 256 kB."""
    queue_limit_ms: DelayMs | None = None
    """The same limit as time at `rate_mbps`."""

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, value: str) -> str:
        return check_name(value)

    @model_validator(mode="after")
    def _units_are_unambiguous(self) -> Self:
        for stem in ("ecn_threshold", "queue_limit"):
            in_kb, in_ms = getattr(self, f"{stem}_kb"), getattr(self, f"{stem}_ms")
            if in_kb is not None and in_ms is not None:
                raise ValueError(f"path {quoted(self.name)}: give {stem}_kb or {stem}_ms, not both")
            if in_ms is not None and self.rate_mbps is None:
                raise ValueError(f"path {quoted(self.name)}: {stem}_ms needs rate_mbps, or give {stem}_kb")
        return self

    def state(self) -> ChannelState:
        """Returns what either direction of the path does while no fault is active."""
        return ChannelState(
            rate_mbps=self.rate_mbps,
            delay_ms=self.delay_ms,
            jitter_ms=self.jitter_ms,
            loss_percent=self.loss_percent,
            loss_burst_packets=self.loss_burst_packets,
            reorder_percent=self.reorder_percent,
            reorder_delay_ms=self.reorder_delay_ms,
            duplicate_percent=self.duplicate_percent,
            corrupt_percent=self.corrupt_percent,
            ecn_threshold_bytes=self._bytes("ecn_threshold"),
            queue_limit_bytes=self._bytes("queue_limit"),
        )

    def _bytes(self, stem: str) -> int | None:
        in_kb: float | None
        in_ms: float | None
        in_kb, in_ms = getattr(self, f"{stem}_kb"), getattr(self, f"{stem}_ms")
        if in_kb is not None:
            return round(in_kb * 1000)
        if in_ms is not None and self.rate_mbps is not None:
            return bytes_in_ms(self.rate_mbps, in_ms)
        return None


class EmulatedNetwork(Table):
    """Sites and the paths between them.

    Example:
        >>> network = EmulatedNetwork(
        ...     sites=("a", "b"),
        ...     paths=(EmulatedPath(name="north", rate_mbps=200, delay_ms=25),),
        ... )
        >>> [str(channel) for channel in network.channels]
        ['north a->b', 'north b->a']
    """

    sites: tuple[str, ...] = Field(min_length=2, max_length=SITES_MAX)
    """Names of the sites."""
    paths: tuple[EmulatedPath, ...] = Field(min_length=1, max_length=PATHS_MAX)
    """All paths. Two sites without a path of a plane cannot reach each other in that plane."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of every random decision; the same seed and packet counts give the same losses."""
    port_to_path: Literal["hash", "modulo"] = "hash"
    """How a UDP source port chooses among several paths of one plane: `hash` as a router's ECMP would,
    `modulo` as port number modulo number of paths, for tests that need to know where a packet goes."""

    @field_validator("sites")
    @classmethod
    def _sites_are_named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for index, site in enumerate(value):
            check_name(site)
            if site in value[:index]:
                raise ValueError(f"site {quoted(site)} is listed twice")
        return value

    @model_validator(mode="after")
    def _paths_join_known_sites(self) -> Self:
        seen: set[str] = set()
        known = names(self.sites)
        for path in self.paths:
            if path.name in seen:
                raise ValueError(f"path name {quoted(path.name)} is used twice; give each path its own name")
            seen.add(path.name)
            if path.between is None:
                if len(self.sites) != 2:
                    raise ValueError(f"path {quoted(path.name)} needs between = [site, site]; sites: {known}")
                continue
            for site in path.between:
                if site not in self.sites:
                    raise ValueError(
                        f"path {quoted(path.name)}: unknown site {quoted(site)}; known sites: {known}"
                    )
            if path.between[0] == path.between[1]:
                raise ValueError(
                    f"path {quoted(path.name)} joins {quoted(path.between[0])} to itself; name two sites"
                )
        return self

    def ends(self, path: EmulatedPath) -> tuple[str, str]:
        """Returns the two sites a path joins."""
        return path.between if path.between is not None else (self.sites[0], self.sites[1])

    @cached_property
    def states(self) -> dict[Channel, ChannelState]:
        """Both channels of every path with their fault-free state, in the order the paths are listed."""
        states: dict[Channel, ChannelState] = {}
        for path in self.paths:
            near, far = self.ends(path)
            for from_site, to_site in ((near, far), (far, near)):
                states[Channel(path.name, path.plane, from_site, to_site)] = path.state()
        return states

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Both channels of every path."""
        return tuple(self.states)

    @property
    def planes(self) -> tuple[int, ...]:
        """Planes in use, ascending."""
        return tuple(sorted({path.plane for path in self.paths}))

    @classmethod
    def parse(cls, table: Mapping[str, Any], *, source: str = "network") -> EmulatedNetwork:
        """Builds a network from a table as TOML gives it.

        Raises:
            ConfigError: with one line per mistake, each starting with `source`.
        """
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise ConfigError(describe_validation_error(error, source)) from error

    @classmethod
    def load(cls, path: str | Path) -> EmulatedNetwork:
        """Reads a network description from a TOML file.

        Raises:
            ConfigError: the file cannot be read or describes no valid network.
        """
        return cls.parse(read_toml(path), source=str(path))


def full_mesh(
    sites: tuple[str, ...],
    *,
    planes: int = 1,
    paths_per_plane: int = 1,
    seed: int = 0,
    port_to_path: Literal["hash", "modulo"] = "hash",
    **figures: float,
) -> EmulatedNetwork:
    """Joins every pair of sites by the same number of equal paths in every plane.

    Args:
        sites: names of the sites.
        planes: number of planes, numbered from 0.
        paths_per_plane: paths between two sites in one plane.
        seed: seed of the network.
        port_to_path: how source ports choose a path.
        figures: fields of `EmulatedPath` shared by all paths, such as `rate_mbps` and `delay_ms`.

    Raises:
        ConfigError: a figure is unknown or impossible.

    Example:
        >>> [path.name for path in full_mesh(("a", "b"), planes=2, rate_mbps=200.0).paths]
        ['a-b:0', 'a-b:1']
        >>> [path.name for path in full_mesh(("a", "b"), paths_per_plane=2).paths]
        ['a-b:0.0', 'a-b:0.1']
    """
    paths = []
    for key, value in (("planes", planes), ("paths_per_plane", paths_per_plane)):
        expect_whole(f"full_mesh.{key}", value, 1, 4096)
    sites = tuple(expect_list("full_mesh.sites", sites, "names of sites"))
    for near, far in combinations(sites, 2):
        for plane in range(planes):
            for index in range(paths_per_plane):
                name = f"{near}-{far}:{plane}" + (f".{index}" if paths_per_plane > 1 else "")
                paths.append({"name": name, "between": (near, far), "plane": plane, **figures})
    table = {"sites": sites, "paths": paths, "seed": seed, "port_to_path": port_to_path}
    return EmulatedNetwork.parse(table, source="full_mesh")
