"""What is the matter with links, and the commands that make it so. Pure.

* A signalled outage takes the carrier away: the upper end of the cable is set down, and the lower one sees it.
* A silent one drops what arrives at either end, and nobody is told; loss drops some of it, at random.
* Rate and delay are settings of the queue in front of the link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.topology.link_faults import LinkChange
from farstep.lab.fabric.options import RATE_SHAPED_MBPS_MAX, LabOptions
from farstep.lab.fabric.wiring import Cable, FabricWiring, Port

__all__ = [
    "Features",
    "LinkState",
    "arrival_rules",
    "changed",
    "check_changes",
    "is_cut",
    "marking_rules",
    "shaping",
    "upper_end",
]

NS_PER_MS = 1_000_000

_DRAWS = 1_000_000
"""Loss is a number of packets out of so many."""

_MARK_GRAIN_BYTES = 256
"""What is counted for marks: a packet of 4 KB to within 3 %."""

_MARK_SHARE = 0.97
"""Marks keep a sender a little below the rate of the link, so that a queue once built up drains again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the kernel and its tools can do beyond forwarding."""

    filters: bool
    """The packet filter works (`nft`): silent outages and loss."""
    marks: bool
    """...also for packets on their way out: ECN marks."""
    netem: bool
    """The kernel delays packets by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What is the matter with a directed link."""

    is_down: bool = False
    is_signalled: bool = False
    loss: float = 0.0
    """Share of packets lost."""
    rate_share: float = 1.0
    """Part of the fault-free rate."""
    delay_ns: float = 0.0
    """Added to the fault-free delay."""

    @property
    def text(self) -> str:
        """In words."""
        parts = ["down, signalled" if self.is_signalled else "down, silent"] if self.is_down else []
        if self.loss:
            parts.append(f"loss {100 * self.loss:.4g} %")
        if self.rate_share != 1.0:
            parts.append(f"rate {100 * self.rate_share:.4g} %")
        if self.delay_ns:
            parts.append(f"delay {self.delay_ns / NS_PER_MS:+.4g} ms")
        return ", ".join(parts) or "healthy"

    @property
    def is_dropping(self) -> bool:
        """Whether packets that arrive are dropped without anybody being told."""
        return self.is_down and not self.is_signalled


def changed(state: LinkState, change: LinkChange) -> LinkState:
    """Returns what is the matter with a link after a change."""
    if change.kind == "down":
        return replace(state, is_down=True, is_signalled=change.is_signalled)
    if change.kind == "up":
        return replace(state, is_down=False, is_signalled=False)
    if change.kind == "loss":
        return replace(state, loss=change.value)
    if change.kind == "rate":
        return replace(state, rate_share=change.value)
    return replace(state, delay_ns=change.value)


def is_cut(there: LinkState, back: LinkState) -> bool:
    """Whether a cable has no carrier: an outage of one of its directions is signalled."""
    return any(state.is_down and state.is_signalled for state in (there, back))


def upper_end(wiring: FabricWiring, cable: Cable) -> Port:
    """Returns the end of a cable at the switch of the higher tier."""
    return max(cable.ends, key=lambda port: int(wiring.topology.node_tier[port.node]))


def check_changes(
    wiring: FabricWiring, features: Features, changes: Iterable[LinkChange], *, source: str
) -> None:
    """Refuses what a lab cannot do, before any of it is done.

    Raises:
        ConfigError: with one line per fault.
    """
    wrong: dict[str, None] = {}
    for change in changes:
        reason = _reason_against(wiring, features, change)
        if reason is not None:
            wrong[f"{source}: {change.fault}: {reason}"] = None
    if wrong:
        raise ConfigError("\n".join(wrong))


def _reason_against(wiring: FabricWiring, features: Features, change: LinkChange) -> str | None:
    links = {int(link) for link in change.links}
    if change.kind == "down" and change.is_signalled:
        for link in links:
            if link ^ 1 not in links:
                return (
                    f"silent = false for {wiring.topology.link_name(link)} alone: a link has carrier both ways or"
                    " neither; valid: silent = true, or - instead of ->"
                )
    elif change.kind == "delay":
        for link in links:
            if not (features.netem or wiring.cables[link >> 1].is_carried):
                return (
                    f"delay of {wiring.topology.link_name(link)}: this kernel delays no packets (netem); valid: links"
                    " whose latency in the fabric file is 0.1 ms or more"
                )
    elif change.kind in ("down", "loss") and not (
        features.filters or all(wiring.cables[link >> 1].is_carried for link in links)
    ):
        return (
            f"kind = {quoted(change.kind)} needs the command nft (package nftables), which does not work here"
        )
    return None


# -- queues ---------------------------------------------------------------------------------------------------


def shaping(cable: Cable, link: int, state: LinkState, options: LabOptions) -> str | None:
    """Returns the line for `tc -batch` that sets the queue in front of a link; None: it needs none.

    A cable of which packets are carried by a process is not shaped here.
    """
    rate_mbps = cable.rates_mbps[link & 1] * state.rate_share
    delay_ms = cable.delays_ms[link & 1] + state.delay_ns / NS_PER_MS
    is_delayed = options.delay == "netem" and delay_ms > 0
    is_shaped = rate_mbps <= RATE_SHAPED_MBPS_MAX
    if cable.is_carried:
        return None
    device = f"dev {cable.sender(link).interface} root"
    rate = f"rate {round(rate_mbps * 1e6)}bit"
    queue_bytes = options.queue_bytes(rate_mbps)
    if is_delayed:
        on_its_way_bytes = rate_mbps * 125 * delay_ms
        packets = max(1000, round((queue_bytes + on_its_way_bytes) / 512))
        return f"qdisc replace {device} netem delay {delay_ms:.3f}ms limit {packets}" + (
            f" {rate}" if is_shaped else ""
        )
    if is_shaped:
        burst = options.burst_bytes(rate_mbps)
        return f"qdisc replace {device} tbf {rate} burst {burst} limit {burst + queue_bytes}"
    return None


# -- packet filter --------------------------------------------------------------------------------------------


def marking_rules(cable: Cable, link: int, state: LinkState, options: LabOptions) -> str:
    """Returns the rules that set ECN marks at the sender of a link, empty if none are wanted.

    The filter sees rates and no queues: it counts what a link of nearly its rate could not have sent yet, and marks
    what exceeds `mark_ms` of that. Its limit on bytes never holds less than a second's worth, so packets are counted
    in grains, one step of the rules for each.
    """
    rate_mbps = cable.rates_mbps[link & 1] * state.rate_share
    if not options.mark_ms or rate_mbps > RATE_SHAPED_MBPS_MAX or cable.is_carried:
        return ""
    interface = cable.sender(link).interface
    per_s = round(rate_mbps * 125_000 * _MARK_SHARE / _MARK_GRAIN_BYTES)
    burst = max(1, options.mark_bytes(rate_mbps) // _MARK_GRAIN_BYTES)
    bucket = f" limit grains {{ rate over {per_s}/second burst {burst} packets\n }}\n"
    grains = round((options.mtu_bytes + 14) / _MARK_GRAIN_BYTES)
    longer = [_MARK_GRAIN_BYTES * grain + _MARK_GRAIN_BYTES // 2 for grain in range(grains)]
    rules = ["ip6 ecn { not-ect, ce } accept"]
    rules += [f'meta length > {length} limit name "grains" ip6 ecn set ce accept' for length in longer]
    return _table(f"farstep_mark_{interface}", "egress", interface, "\n  ".join(rules), objects=bucket)


def arrival_rules(cable: Cable, link: int, state: LinkState) -> str:
    """Returns the rules at the receiver of a link: what is dropped on arrival."""
    interface = cable.receiver(link).interface
    rule = ""
    if state.is_dropping:
        rule = "counter drop"
    elif state.loss > 0:
        rule = f"numgen random mod {_DRAWS} < {round(state.loss * _DRAWS)} counter drop"
    return _table(f"farstep_arrive_{interface}", "ingress", interface, rule)


def _table(name: str, hook: str, interface: str, rule: str, *, objects: str = "") -> str:
    """Replaces a table of the packet filter in one go; without a rule, removes it."""
    removed = f"add table netdev {name}\ndelete table netdev {name}\n"
    if not rule:
        return removed
    chain = f'type filter hook {hook} device "{interface}" priority 0; policy accept;'
    return f"{removed}table netdev {name} {{\n{objects} chain {hook} {{\n  {chain}\n  {rule}\n }}\n}}\n"
