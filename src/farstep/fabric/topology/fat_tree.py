"""Fat trees of two or three tiers, from the radix of their switches or tier by tier."""

from __future__ import annotations

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.cabling import cabling
from farstep.fabric.topology.checks import RADIX_MAX, divides, even_radix, number, whole
from farstep.fabric.topology.clos import LINK_LATENCY_NS, TRANSCEIVER_GBPS, fewest_above
from farstep.fabric.topology.draft import NODES_MAX, PLANES_MAX
from farstep.fabric.topology.folded_clos import FoldedClos, SwitchCounts, build_folded_clos
from farstep.fabric.topology.model import Topology


def fat_tree(
    nics: int | None = None,
    *,
    tiers: int = 3,
    radix: int | None = None,
    planes: int = 1,
    oversubscription: float = 1.0,
    pod_oversubscription: float = 1.0,
    port_gbps: float = 100.0,
    uplink_gbps: float | None = None,
    core_gbps: float | None = None,
    link_latency_ns: float = LINK_LATENCY_NS,
    switch_latency_ns: float = 0.0,
    transceiver_gbps: float = TRANSCEIVER_GBPS,
    nic_copper: bool = False,
) -> Topology:
    """Builds a fat tree of equal switches.

    A T0 has half of its ports down. Three tiers: a pod has `radix / 2` T0s and the T1s above them, and there are up
    to `radix` pods, as many as the NICs need.

    Args:
        nics: NICs; None: as many as the radix allows (`radix**3 / 4`, or `radix**2 / 2` in two tiers).
        tiers: tiers of switches, 2 or 3.
        radix: ports of a switch; None: the smallest even number of which full pods hold the NICs.
        planes: planes, each with one port of every NIC.
        oversubscription: by which factor a T0 has fewer uplinks than NICs.
        pod_oversubscription: by which factor a T1 has fewer uplinks than links down.
        port_gbps: rate of a NIC's port.
        uplink_gbps: rate of T0-T1 links; None: as `port_gbps`.
        core_gbps: rate of T1-T2 links; None: as `uplink_gbps`.
        link_latency_ns: propagation of every link.
        switch_latency_ns: forwarding latency of every switch.
        transceiver_gbps: capacity of one transceiver; neighbouring ports of slower links share one.
        nic_copper: NICs are on copper cables.

    Raises:
        ConfigError: an argument cannot be used, or the NICs do not fit.

    Example:
        >>> fat_tree(128).num_switches
        80
    """
    tiers = whole("tiers", tiers, low=2, high=3)
    if nics is not None:
        nics = whole("nics", nics, low=2, high=NODES_MAX)
    radix = even_radix(_radix_for(nics, tiers) if radix is None else radix)
    half = radix // 2
    up = _fewer("oversubscription", oversubscription, half)
    pods = _pods(nics, half, radix, tiers)
    counts = (
        _two_tiers(pods, radix, up) if tiers == 2 else _three_tiers(pods, radix, up, pod_oversubscription)
    )
    cables = cabling(
        tiers,
        port_gbps=port_gbps,
        uplink_gbps=uplink_gbps,
        core_gbps=core_gbps,
        link_latency_ns=link_latency_ns,
        switch_latency_ns=switch_latency_ns,
        transceiver_gbps=transceiver_gbps,
        nic_copper=nic_copper,
    )
    planes = whole("planes", planes, low=1, high=PLANES_MAX)
    shape = FoldedClos(num_planes=planes, **counts, **cables)
    name = f"fat tree of {shape.num_nics} NICs, {tiers} tiers, radix {radix}"
    parameters = {"nics": shape.num_nics, "tiers": tiers, "radix": radix, "planes": planes}
    return build_folded_clos(shape, name=name, kind="fat-tree", parameters=parameters)


def _two_tiers(num_t0: int, radix: int, up: int) -> SwitchCounts:
    return SwitchCounts(
        num_pods=1,
        t0s_per_pod=num_t0,
        t0_down=radix // 2,
        t0_up=up,
        t1s_per_pod=fewest_above(num_t0, up, radix),
        t1_up=0,
        num_t2=0,
    )


def _three_tiers(pods: int, radix: int, up: int, pod_oversubscription: float) -> SwitchCounts:
    half = radix // 2
    t1s = fewest_above(half, up, half)
    t1_up = _fewer("pod_oversubscription", pod_oversubscription, half * up // t1s)
    return SwitchCounts(
        num_pods=pods,
        t0s_per_pod=half,
        t0_down=half,
        t0_up=up,
        t1s_per_pod=t1s,
        t1_up=t1_up,
        num_t2=fewest_above(pods, t1s * t1_up, radix),
    )


def _pods(nics: int | None, half: int, radix: int, tiers: int) -> int:
    """Returns the pods of three tiers, or the T0s of two."""
    unit, what = (half * half, "NICs per pod") if tiers == 3 else (half, "NICs per T0")
    pods = radix if nics is None else divides(what, unit, "nics", nics)
    if pods > radix:
        raise ConfigError(
            f"nics = {nics}: {tiers} tiers of radix = {radix} hold up to {unit * radix}; valid: fewer NICs,"
            f" {'a third tier' if tiers == 2 else 'a larger radix'}"
        )
    return pods


def _fewer(key: str, factor: float, ports: int) -> int:
    factor = number(key, factor, low=1.0, high=64.0)
    fewer = ports / factor
    if fewer < 1 or abs(fewer - round(fewer)) > 1e-9:
        raise ConfigError(
            f"{key} = {factor:g}: {ports} ports cannot be divided by it; valid: a divisor of {ports}"
        )
    return round(fewer)


def _radix_for(nics: int | None, tiers: int) -> int:
    if nics is None:
        raise ConfigError("nics = None: give nics or radix")
    for radix in range(2, RADIX_MAX, 2):
        unit = (radix // 2) ** (tiers - 1)
        if unit * radix >= nics and nics % unit == 0:
            return radix
        if unit > nics:
            break
    raise ConfigError(
        f"nics = {nics}: no even radix gives full pods; valid: such as {nics + nics % 2} or a multiple of 4"
    )
