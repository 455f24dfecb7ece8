"""Tori of chips that forward, and tori of cubes that optical circuit switches join.

Each chip is a NIC and a router: what other chips send through it passes the router alone. Sources of the shapes and
rates: the TPU v4 paper (ISCA 2023) and the scaling book: 45 GB/s one way per link in v4, 100 GB/s in v5p; a cube is
4 x 4 x 4 chips in a rack, joined by copper, and 48 optical circuit switches join the faces of 64 cubes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect_list
from farstep.fabric.topology.checks import latency, rate, whole
from farstep.fabric.topology.draft import NODES_MAX, TopologyDraft
from farstep.fabric.topology.model import Topology

TPU_V4_LINK_GBPS = 360.0
"""45 GB/s one way per link of a TPU v4."""

HOP_LATENCY_NS = 1000.0
"""One hop between neighbouring chips, by the scaling book about a microsecond."""

AXES = "xyz"

_Ints = npt.NDArray[np.int64]


class OcsConnection(NamedTuple):
    """A face of a cube joined to the opposite face of another, or of itself, by optical circuit switches."""

    axis: str
    """`"x"`, `"y"` or `"z"`."""
    plus: int
    """Cube whose face towards growing coordinates is joined..."""
    minus: int
    """...to the face of this one towards falling ones."""


def torus(
    shape: Sequence[int],
    *,
    wrap: bool | Sequence[bool] = True,
    link_gbps: float = TPU_V4_LINK_GBPS,
    injection_gbps: float | None = None,
    link_latency_ns: float = HOP_LATENCY_NS,
    router_latency_ns: float = 0.0,
) -> Topology:
    """Builds a torus or mesh of one to three dimensions; routes are all shortest ones.

    Chip `(x, y, z)` is NIC `(x * Y + y) * Z + z`. A dimension of two with wrap has two parallel cables.

    Args:
        shape: chips along each dimension.
        wrap: whether each dimension closes to a ring, or one answer for all.
        link_gbps: rate of a link, one way.
        injection_gbps: rate of a chip into its router; None: all of its links together.
        link_latency_ns: propagation between neighbours.
        router_latency_ns: forwarding latency of a router.

    Raises:
        ConfigError: an argument cannot be used.

    Example:
        >>> torus((4, 4, 4)).routes().num_paths(0, 21, 0)  # one step in each dimension
        6
    """
    sizes = _shape("shape", shape)
    wraps = _wraps(wrap, len(sizes))
    count = math.prod(sizes)
    if not 2 <= count <= NODES_MAX // 2:
        raise ConfigError(f"shape = {list(sizes)}: makes {count} chips; valid: 2 to {NODES_MAX // 2}")
    link_gbps = rate("link_gbps", link_gbps)
    degree = sum(0 if size == 1 else 2 for size in sizes)
    chip = np.arange(count).reshape(sizes)
    draft, routers = _chips(count, injection_gbps, degree * link_gbps, router_latency_ns, group=0)
    for axis, (size, is_ring) in enumerate(zip(sizes, wraps, strict=True)):
        ahead = np.roll(chip, -1, axis)
        keep = np.take(chip, range(size if is_ring else size - 1), axis) if size > 1 else chip[:0]
        near = keep.ravel()
        draft.add_cables(
            routers[near],
            routers[ahead.ravel()[near]],
            rate_gbps=link_gbps,
            latency_ns=latency("link_latency_ns", link_latency_ns),
            is_optical=False,
        )
    name = f"torus {' x '.join(map(str, sizes))}"
    parameters = {"shape": list(sizes), "wrap": list(wraps), "link_gbps": link_gbps}
    bisection = _bisection(sizes, wraps, link_gbps)
    return draft.build(name, kind="torus", parameters=parameters, bisection_gbps=bisection)


def cube_torus(
    cubes: int,
    connections: Sequence[OcsConnection | Sequence[Any]],
    *,
    cube_size: int = 4,
    link_gbps: float = TPU_V4_LINK_GBPS,
    injection_gbps: float | None = None,
    link_latency_ns: float = HOP_LATENCY_NS,
    optical_latency_ns: float = HOP_LATENCY_NS,
    router_latency_ns: float = 0.0,
) -> Topology:
    """Builds cubes of chips with the faces that optical circuit switches join, as they are set now.

    To reconfigure is to build again with other connections: switches of this kind take milliseconds and are
    turned between jobs. Chip `(x, y, z)` of cube `c` is NIC `c * n**3 + (x * n + y) * n + z` with `n = cube_size`;
    the group of a node is its cube.

    Args:
        cubes: cubes.
        connections: faces joined, see `OcsConnection`; `torus_connections` makes those of a torus. Faces that
            appear in none are dark.
        cube_size: chips along each edge.
        link_gbps: rate of a link, one way.
        injection_gbps: rate of a chip into its router; None: six links.
        link_latency_ns: propagation within a cube.
        optical_latency_ns: propagation between cubes.
        router_latency_ns: forwarding latency of a router.

    Raises:
        ConfigError: an argument cannot be used, or a face is joined twice.
    """
    cubes = whole("cubes", cubes, low=1, high=4096)
    size = whole("cube_size", cube_size, low=2, high=16)
    link_gbps = rate("link_gbps", link_gbps)
    joined = _connections(connections, cubes)
    per_cube = size**3
    count = cubes * per_cube
    chip = np.arange(count).reshape(cubes, size, size, size)
    draft, routers = _chips(
        count, injection_gbps, 6 * link_gbps, router_latency_ns, np.arange(count) // per_cube
    )
    for axis in range(3):
        near = np.take(chip, range(size - 1), axis + 1).ravel()
        far = np.take(chip, range(1, size), axis + 1).ravel()
        draft.add_cables(
            routers[near],
            routers[far],
            rate_gbps=link_gbps,
            latency_ns=latency("link_latency_ns", link_latency_ns),
            is_optical=False,
        )
    for connection in joined:
        axis = AXES.index(connection.axis)
        draft.add_cables(
            routers[np.take(chip[connection.plus], size - 1, axis).ravel()],
            routers[np.take(chip[connection.minus], 0, axis).ravel()],
            rate_gbps=link_gbps,
            latency_ns=latency("optical_latency_ns", optical_latency_ns),
        )
    parameters = {"cubes": cubes, "cube_size": size, "connections": [list(item) for item in joined]}
    return draft.build(f"{cubes} cubes of {per_cube} chips", kind="cube-torus", parameters=parameters)


def torus_connections(shape: Sequence[int]) -> list[OcsConnection]:
    """Returns the connections that make a torus of cubes; cube `(x, y, z)` is number `(x * Y + y) * Z + z`.

    Args:
        shape: cubes along each of the three dimensions; along a dimension of one, a cube wraps onto itself.

    Raises:
        ConfigError: it has not three dimensions of at least one.

    Example:
        >>> torus_connections((1, 1, 1))[0]
        OcsConnection(axis='x', plus=0, minus=0)
    """
    sizes = _shape("shape", shape)
    if len(sizes) != 3:
        raise ConfigError(f"shape = {list(shape)}: cubes are joined in three dimensions")
    cube = np.arange(math.prod(sizes)).reshape(sizes)
    return [
        OcsConnection(AXES[axis], int(plus), int(minus))
        for axis in range(3)
        for plus, minus in zip(cube.ravel(), np.roll(cube, -1, axis).ravel(), strict=True)
    ]


def _chips(
    count: int,
    injection_gbps: float | None,
    all_links_gbps: float,
    router_latency_ns: float,
    group: npt.ArrayLike,
) -> tuple[TopologyDraft, npt.NDArray[np.int32]]:
    draft = TopologyDraft(count, nic_group=group)
    routers = draft.add_switches(
        count, tier=0, group=group, latency_ns=latency("router_latency_ns", router_latency_ns)
    )
    inward_gbps = all_links_gbps if injection_gbps is None else rate("injection_gbps", injection_gbps)
    draft.add_cables(np.arange(count), routers, rate_gbps=inward_gbps, latency_ns=0.0, is_optical=False)
    return draft, routers


def _shape(key: str, shape: object) -> tuple[int, ...]:
    if not isinstance(shape, (list, tuple)) or not 1 <= len(shape) <= 3:
        raise ConfigError(f"{key} = {quoted(shape)}: valid: one to three numbers, such as [4, 4, 4]")
    return tuple(whole(f"{key}[{axis}]", size, low=1, high=65_536) for axis, size in enumerate(shape))


def _wraps(wrap: bool | Sequence[bool], dimensions: int) -> tuple[bool, ...]:
    if isinstance(wrap, bool):
        return (wrap,) * dimensions
    if (
        not isinstance(wrap, Sequence)
        or len(wrap) != dimensions
        or not all(isinstance(each, bool) for each in wrap)
    ):
        raise ConfigError(
            f"wrap = {quoted(wrap)}: valid: true, false, or {dimensions} of them, one per dimension"
        )
    return tuple(wrap)


def _bisection(sizes: tuple[int, ...], wraps: tuple[bool, ...], link_gbps: float) -> float | None:
    """Returns the narrowest cut across one dimension; None where no dimension can be cut in even halves."""
    cuts = [
        math.prod(sizes) // size * (2 if is_ring else 1) * link_gbps
        for size, is_ring in zip(sizes, wraps, strict=True)
        if size % 2 == 0
    ]
    longest = max(sizes)
    return min(cuts) if longest % 2 == 0 else None


def _connections(connections: Sequence[OcsConnection | Sequence[Any]], cubes: int) -> list[OcsConnection]:
    joined = []
    used: set[tuple[str, str, int]] = set()
    for number, item in enumerate(expect_list("connections", connections, "faces joined, see OcsConnection")):
        key = f"connections[{number}]"
        if (
            isinstance(item, str)
            or not isinstance(item, Sequence)
            or len(item) != 3
            or item[0] not in tuple(AXES)
        ):
            raise ConfigError(
                f'{key} = {quoted(item)}: valid: [axis, cube, cube], such as ["x", 0, 1]; axes: x, y, z'
            )
        for place, side in ((1, "plus"), (2, "minus")):
            cube = whole(f"{key}.{side}", item[place], low=0, high=cubes - 1)
            face = (str(item[0]), side, cube)
            if face in used:
                raise ConfigError(f"{key}: the {side} {item[0]} face of cube {cube} is joined twice")
            used.add(face)
        joined.append(OcsConnection(*item))
    return joined
