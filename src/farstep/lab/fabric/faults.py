"""Faults at work in a lab: a script by the clock, or one thing at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from farstep.fabric.topology.link_faults import LinkChange
from farstep.lab.fabric.ecmp import EcmpRoutes, changes, ecmp_routes
from farstep.lab.fabric.impairments import (
    LinkState,
    arrival_rules,
    changed,
    check_changes,
    is_cut,
    marking_rules,
    shaping,
    upper_end,
)
from farstep.lab.fabric.lab import FabricLab, carried_state, uninterrupted
from farstep.lab.fabric.places import lock
from farstep.lab.fabric.wiring import Cable

__all__ = ["REROUTE_S", "FaultNotice", "LabFaults", "link_states"]

REROUTE_S = 0.5
"""From a signalled change until routing has followed it, for traffic that says no path."""

LINKS = "links.json"
"""What is the matter with links, in the folder of a lab."""

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultNotice:
    """Something that has just been done."""

    at_s: float
    """Seconds since the script began."""
    late_s: float
    """How much later than the script says it was done."""
    kind: str
    """Kind of the change, `reroute` or `restored`."""
    fault: str
    links: tuple[str, ...]
    value: float = 0.0
    is_signalled: bool = False


def link_states(lab: FabricLab) -> dict[int, LinkState]:
    """Returns what is the matter with links, by directed link; healthy ones are left out."""
    path = lab.record.folder / LINKS
    if not path.exists():
        return {}
    return {int(link): LinkState(**state) for link, state in json.loads(path.read_text()).items()}


class LabFaults:
    """Breaks links of a lab and mends them. No other command changes the lab meanwhile.

    Args:
        lab: a lab that is up.
        reroute_s: from a signalled change until routing has followed it; None: never.
        tell: is told of everything that is done.

    Raises:
        LabError: the lab is not up, or another command is changing it.

    Example:
        with LabFaults(find_lab()) as faults:
            faults.set("link:t0/p0/0-t1/p0/1", is_down=True)
            ...
            faults.clear()
    """

    def __init__(
        self,
        lab: FabricLab,
        *,
        reroute_s: float | None = REROUTE_S,
        tell: Callable[[FaultNotice], None] | None = None,
    ) -> None:
        self.lab = lab
        self.wiring = lab.wiring
        self._topology = lab.record.topology
        self._options = lab.record.options
        self._reroute_s = reroute_s
        self._tell = tell
        self._lock = lock(lab.name)
        self._started_ns = time.monotonic_ns()
        self._reroute_ns: int | None = None
        self._stop = threading.Event()
        self._lock.__enter__()
        try:
            lab.expect_up()
            self._features = lab.features
            self.states = link_states(lab)
            """What is the matter with links, by directed link."""
        except BaseException:
            self.close()
            raise
        self._routes: EcmpRoutes = ecmp_routes(self.wiring, self._cut_links())

    def close(self) -> None:
        """Lets others change the lab; what was done to links stays."""
        self._lock.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- a script -------------------------------------------------------------------------------------------

    def check(self, script: Iterable[LinkChange], *, source: str = "fault script") -> None:
        """Refuses a script that this lab cannot carry out.

        Raises:
            ConfigError: with one line per fault.
        """
        check_changes(self.wiring, self._features, script, source=source)

    def run(self, script: Sequence[LinkChange], *, source: str = "fault script") -> None:
        """Carries out a script, and returns with its last change; what was the matter before is mended first.

        Args:
            script: changes in the order of time.
            source: name of the script in messages.

        Raises:
            ConfigError: this lab cannot carry it out; then nothing is done.
            KeyboardInterrupt: Ctrl-C, or `stop`; then everything is mended.
        """
        self.check(script, source=source)
        self.clear()
        self._started_ns = time.monotonic_ns()
        try:
            for change in script:
                self._wait_until(self._started_ns + change.time_ns)
                self.apply(change)
            if self._reroute_ns is not None:
                self._wait_until(self._reroute_ns)
        except BaseException:
            with uninterrupted():
                self.clear()
            raise

    def stop(self) -> None:
        """Makes `run` end early, from another thread."""
        self._stop.set()

    def apply(self, change: LinkChange) -> None:
        """Carries out a change now, whatever its time."""
        wanted = {
            link: changed(self.states.get(link, LinkState()), change) for link in map(int, change.links)
        }
        self._move(wanted)
        done_s = self._now_s()
        self._say(
            FaultNotice(
                at_s=done_s,
                late_s=done_s - change.time_ns / NS_PER_S,
                kind=change.kind,
                fault=change.fault,
                links=self._names(wanted),
                value=change.value,
                is_signalled=change.is_signalled,
            )
        )

    def set(self, target: str, **values: Any) -> None:
        """Sets what is the matter with links now.

        Args:
            target: `link:t0/p0/3-t1/p0/7`, `switch:t1/p0/0`, `nic-port:3/1`... as `Topology.resolve` reads it.
            values: of `LinkState`; those not given become healthy.

        Raises:
            ConfigError: the target names nothing of the fabric.
        """
        links = map(int, self._topology.resolve(target))
        self._move({link: LinkState(**values) for link in links})

    def clear(self) -> None:
        """Mends everything, and lets routing follow at once."""
        mended = dict(self.states)
        self._move(dict.fromkeys(mended, LinkState()), is_thorough=True)
        self.reroute()
        if mended:
            self._say(
                FaultNotice(
                    at_s=self._now_s(), late_s=0.0, kind="restored", fault="", links=self._names(mended)
                )
            )

    def reroute(self) -> None:
        """Lets routing follow what is cut, now."""
        self._reroute_ns = None
        wanted = ecmp_routes(self.wiring, self._cut_links())
        self.lab.shell.ip(self._by_slug(changes(self.wiring, self._routes, wanted)), force=True)
        self._routes = wanted

    # -- doing it -------------------------------------------------------------------------------------------

    def _move(self, wanted: dict[int, LinkState], *, is_thorough: bool = False) -> None:
        """Brings links from the state they are in to another, and remembers it.

        Args:
            wanted: the states, by directed link.
            is_thorough: trusts nothing that is remembered of these links: who did it last may have been killed at it.
        """
        before = dict(self.states)
        for link, state in wanted.items():
            if state == LinkState():
                self.states.pop(link, None)
            else:
                self.states[link] = state
        self._save({**before, **self.states})  # whatever happens now, all that is touched is known to be
        commands = _Commands()
        for cable in sorted({link >> 1 for link in wanted}):
            self._move_cable(self.wiring.cables[cable], before, commands, is_thorough)
        try:
            self._carry_out(commands)
        except BaseException:
            self.states = {**before, **self.states}  # nobody knows how far it came: all of it is to be mended
            raise
        self._save(self.states)

    def _move_cable(
        self, cable: Cable, before: dict[int, LinkState], commands: _Commands, is_thorough: bool
    ) -> None:
        links = (2 * cable.number, 2 * cable.number + 1)
        old = tuple(before.get(link, LinkState()) for link in links)
        new = tuple(self.states.get(link, LinkState()) for link in links)
        if is_thorough or is_cut(*old) != is_cut(*new):
            self._cut(cable, is_cut(*new), commands)
        for link, was, now in zip(links, old, new, strict=True):
            if cable.is_carried:
                if is_thorough or was != now:
                    state = asdict(carried_state(cable, link, now, self._options))
                    commands.requests.append(("link", {"number": link, "state": state}))
                continue
            sender, receiver = cable.sender(link), cable.receiver(link)
            if is_thorough or (was.is_dropping, was.loss) != (now.is_dropping, now.loss):
                commands.nft.setdefault(receiver.node, []).append(arrival_rules(cable, link, now))
            if is_thorough or (was.rate_share, was.delay_ns) != (now.rate_share, now.delay_ns):
                queue = shaping(cable, link, now, self._options)
                device = f"dev {sender.interface} root"
                commands.tc.setdefault(sender.node, []).append(queue or f"qdisc replace {device} pfifo_fast")
                if self._features.marks:
                    rules = marking_rules(cable, link, now, self._options)
                    commands.nft.setdefault(sender.node, []).append(rules)

    def _cut(self, cable: Cable, is_off: bool, commands: _Commands) -> None:
        """Takes the carrier of a cable away, or gives it back."""
        self._reroute_ns = (
            None if self._reroute_s is None else time.monotonic_ns() + round(self._reroute_s * NS_PER_S)
        )
        upper = upper_end(self.wiring, cable)
        if cable.is_carried:
            commands.requests.append(("carrier", {"cable": cable.number, "is_on": not is_off}))
            return
        lines = commands.ip.setdefault(upper.node, [])
        lines.append(f"link set {upper.interface} {'down' if is_off else 'up'}")
        # Routes over an interface go with it when it is set down; those of uSIDs are static and are there again at
        # once, the others wait for routing.
        if not is_off:
            lines += self.wiring.usid_routes(upper.node, over=upper.interface)
        routes = self._routes[upper.node]
        for network in [network for network, over in routes.items() if upper.interface in over]:
            del routes[network]

    def _carry_out(self, commands: _Commands) -> None:
        shell = self.lab.shell
        shell.nft(self._by_slug(commands.nft))
        shell.ip(self._by_slug(commands.ip))
        shell.tc(self._by_slug(commands.tc))
        if commands.requests:
            with self.lab.keeper() as keeper:
                assert keeper is not None
                for op, arguments in commands.requests:
                    keeper.request(op, **arguments)

    def _by_slug(self, lines: Mapping[int, list[str]]) -> dict[str, list[str]]:
        return {self.wiring.slugs[node]: of_node for node, of_node in lines.items()}

    # -- the rest ---------------------------------------------------------------------------------------------

    def _wait_until(self, due_ns: int) -> None:
        while True:
            now_ns = time.monotonic_ns()
            if self._reroute_ns is not None and self._reroute_ns <= now_ns:
                self.reroute()
                self._say(
                    FaultNotice(at_s=self._now_s(), late_s=0.0, kind="reroute", fault="routing", links=())
                )
                continue
            until_ns = due_ns if self._reroute_ns is None else min(due_ns, self._reroute_ns)
            if until_ns <= now_ns:
                return
            if self._stop.wait((until_ns - now_ns) / NS_PER_S):
                raise KeyboardInterrupt

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._started_ns) / NS_PER_S

    def _cut_links(self) -> list[int]:
        return [link for link, state in self.states.items() if state.is_down and state.is_signalled]

    def _names(self, links: Iterable[int]) -> tuple[str, ...]:
        """Names cables once where both directions are meant."""
        chosen = set(links)
        found = []
        for link in sorted(chosen):
            name = self._topology.link_name(link)
            if link ^ 1 not in chosen:
                found.append(name)
            elif not link & 1:
                found.append(name.replace("->", "-", 1))
        return tuple(found)

    def _say(self, notice: FaultNotice) -> None:
        if self._tell is not None:
            self._tell(notice)

    def _save(self, states: dict[int, LinkState]) -> None:
        path = self.lab.record.folder / LINKS
        written = path.with_suffix(".new")
        written.write_text(json.dumps({link: asdict(state) for link, state in states.items()}))
        written.replace(path)


class _Commands:
    """What is to be done, by node and tool."""

    def __init__(self) -> None:
        self.ip: dict[int, list[str]] = {}
        self.tc: dict[int, list[str]] = {}
        self.nft: dict[int, list[str]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
