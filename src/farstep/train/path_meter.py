"""What one rank sends over each path, as the event log wants to have it.

Connections come and go with the members of the run; a path is told by the sites at its ends.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from farstep.engine import Connection, ConnectionStats, Endpoint, EngineError, EvState, PathEvent
from farstep.train.config import RunConfig

__all__ = ["PathMeter", "path_name", "sampling"]

SAMPLE_INTERVAL_S = 0.2
"""How often paths are sampled: short enough to show a cut, long enough to cost nothing."""


@contextlib.contextmanager
def sampling(
    meter: "PathMeter", endpoint: Endpoint, tell: Callable[[str, int, dict[str, Any]], None]
) -> Iterator[None]:
    """Tells of every path, several times a second, while the context lasts.

    Args:
        meter: makes rates of counters.
        endpoint: whose connections are looked at.
        tell: is given kind, time (monotonic ns) and fields of each event, in a thread of its own.
    """
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(SAMPLE_INTERVAL_S):
            try:
                changes = meter.changes(endpoint.take_path_events())
                samples = meter.sample(endpoint.connections)
            except EngineError:  # the endpoint was closed meanwhile
                return
            for at_ns, fields in changes:
                tell("path_state", at_ns, fields)
            now_ns = time.monotonic_ns()
            for fields in samples:
                tell("path_sample", now_ns, fields)

    thread = threading.Thread(target=run, name="farstep-paths", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=2.0)


def path_name(config: RunConfig, site: str, peer_site: str, plane: int) -> str | None:
    """Returns the name under which traffic between two sites in one plane is recorded.

    It is that of the emulated path, or of the plane where several paths share it. Traffic within a site is
    no path, unless there is no other; then it is named after the site.
    """
    if site == peer_site:
        return f"{site}:{plane}" if len(config.sites) == 1 else None
    ends = {site, peer_site}
    for path in config.paths if config.network.emulate else ():
        if path.plane == plane and (path.between is None or set(path.between) == ends):
            shared = sum(other.plane == plane and other.between == path.between for other in config.paths) > 1
            if not shared:
                return path.name
    near, far = (entry.name for entry in config.sites if entry.name in ends)
    return f"{near}-{far}:{plane}"


@dataclass(slots=True)
class _Counters:
    """Sums over all connections that use a path."""

    plane: int
    tx_bytes: int = 0
    lost: int = 0
    rtt_ns: int = 0
    states: list[EvState] = field(default_factory=list)

    @property
    def state(self) -> EvState:
        """The best that any connection finds: a peer that is not used yet says nothing of the path."""
        return min(self.states, default=EvState.GOOD)


class PathMeter:
    """Turns the counters of connections into rates per path.

    Args:
        config: the run.
        site: where the connections begin.
    """

    def __init__(self, config: RunConfig, site: str) -> None:
        self._config = config
        self._site = site
        self._before: dict[str, _Counters] = {}
        self._before_ns = time.monotonic_ns()
        self._ev_states: dict[tuple[str, int], EvState] = {}

    def sample(self, connections: Iterable[Connection]) -> list[dict[str, Any]]:
        """Returns the fields of a `path_sample` event for each path, since the sample before."""
        now_ns = time.monotonic_ns()
        elapsed_s = max(1, now_ns - self._before_ns) / 1e9
        counters = self._count(connections)
        samples = []
        for name, now in counters.items():
            before = self._before.get(name, _Counters(now.plane))
            lost = max(0, now.lost - before.lost)
            samples.append(
                {
                    "path": name,
                    "plane": now.plane,
                    "state": now.state.name,
                    "tx_bytes_per_s": max(0, now.tx_bytes - before.tx_bytes) / elapsed_s,
                    "retransmitted": lost,  # each packet lost on a path is sent again, over another
                    "lost": lost,
                    "rtt_ns": now.rtt_ns or None,
                }
            )
        self._before, self._before_ns = counters, now_ns
        return samples

    def changes(self, events: Iterable[PathEvent]) -> list[tuple[int, dict[str, Any]]]:
        """Returns time (monotonic ns) and fields of a `path_state` event for each change of an entropy value."""
        changes = []
        for event in events:
            name = self._name(event.peer_site, event.plane)
            old = self._ev_states.get((event.peer_name, event.ev), EvState.GOOD)
            self._ev_states[event.peer_name, event.ev] = event.state
            if name is None or old is event.state:
                continue
            fields = {
                "path": name,
                "plane": event.plane,
                "old": old.name,
                "new": event.state.name,
                "peer": event.peer_name,
                "entropy_value": event.ev,
            }
            changes.append((event.at_ns, fields))
        return changes

    def _count(self, connections: Iterable[Connection]) -> dict[str, _Counters]:
        counters: dict[str, _Counters] = {}
        for connection in connections:
            stats = _stats_of(connection)
            if stats is None:
                continue
            for plane in stats.planes:
                name = self._name(connection.peer_site, plane.plane)
                if name is None:
                    continue
                path = counters.setdefault(name, _Counters(plane.plane))
                path.tx_bytes += plane.tx_bytes
                path.lost += plane.lost
                path.rtt_ns = max(path.rtt_ns, plane.rtt_ns)
                path.states.append(plane.state)
        return counters

    def _name(self, peer_site: str, plane: int) -> str | None:
        return path_name(self._config, self._site, peer_site, plane) if peer_site else None


def _stats_of(connection: Connection) -> ConnectionStats | None:
    try:
        return connection.stats()
    except EngineError:  # closed meanwhile
        return None
