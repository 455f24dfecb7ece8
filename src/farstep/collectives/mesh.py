"""Makes the links of a communicator, each when it is first needed.

Both ends of a link run the same collective when they first need it, so that each publishes its greeting in
the store and then waits for the other's; nobody has to listen for newcomers. A link is used once both ends are open.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence

from farstep.collectives.errors import CommunicatorAborted, CommunicatorTimeout
from farstep.collectives.link import Link, LinkSettings
from farstep.collectives.loop_runner import can_run_in_loop
from farstep.collectives.transport import Connection, Endpoint, Store
from farstep.engine import EngineError

STORE_SLICE_S = 0.5
"""How often a wait for the store looks whether the communicator was aborted."""


class Mesh:
    """The links of one rank of a communicator."""

    def __init__(
        self,
        endpoint: Endpoint,
        store: Store,
        *,
        rank: int,
        size: int,
        name: str,
        settings: LinkSettings,
        identities: Sequence[str] | None = None,
    ) -> None:
        if identities is not None and len(identities) != size:
            raise ValueError(
                f"there are {len(identities)} identities and {size} ranks; valid is one for each"
            )
        self._identities = identities if getattr(endpoint, "has_identity", False) else None
        self.endpoint = endpoint
        self.store = store
        self.rank = rank
        self.size = size
        self.name = name
        self.is_compiled = can_run_in_loop(endpoint)
        self._settings = settings
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._failure: str | None = None

    def connection_to(self, peer: int) -> Connection:
        """Makes a connection to a rank, which must then show a certificate of its name, if names are known."""
        expected = {} if self._identities is None else {"peer_identity": self._identities[peer]}
        made: Connection = self.endpoint.create_connection(peer_name=f"rank{peer}", **expected)
        return made

    def links_to(self, peers: Iterable[int], deadline_s: float) -> dict[int, Link]:
        """Returns links to the peers, making those that are missing.

        Args:
            peers: ranks other than this one.
            deadline_s: time on the monotonic clock at which to give up.

        Raises:
            CommunicatorTimeout: a peer has not published its greeting in time; the message names it.
            EngineError: a connection failed.
        """
        wanted = list(peers)
        missing = [peer for peer in wanted if peer not in self._links]
        if missing:
            self._make(missing, deadline_s)
        return {peer: self._links[peer] for peer in wanted}

    def _make(self, missing: list[int], deadline_s: float) -> None:
        made = []
        for peer in missing:
            connection = self.connection_to(peer)
            link = Link(self.endpoint, peer, connection, self._settings, is_compiled=self.is_compiled)
            with self._lock:
                if self._failure is not None:
                    link.connection.abort(self._failure)
                self._links[peer] = link
            self.store.set(self._key(self.rank, peer, "link"), link.greeting)
            made.append(link)
        for link in made:
            link.connect(self._from(link.peer, "link", deadline_s))
            self.store.set(self._key(self.rank, link.peer, "open"), b"1")
        # What reaches a peer that has not opened its end is lost, and noticed only by a retransmission timeout.
        for link in made:
            self._from(link.peer, "open", deadline_s)

    def _from(self, peer: int, what: str, deadline_s: float) -> bytes:
        """Waits for what a peer says, in slices, because a store's wait cannot be broken off."""
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self.store.get(
                    self._key(peer, self.rank, what), min(max(left_s, 0.001), STORE_SLICE_S)
                )
            except TimeoutError as error:
                if self._failure is not None:
                    raise CommunicatorAborted(self._failure) from None
                if left_s <= STORE_SLICE_S:
                    raise CommunicatorTimeout(
                        f"rank {peer} of {self.name!r} has not announced itself in time"
                    ) from error

    def _key(self, source: int, target: int, what: str) -> str:
        return f"{self.name}/{what}/{source}/{target}"

    def abort(self, reason: str) -> None:
        """Fails every wait on every link at once, on both ends."""
        with self._lock:
            self._failure = reason
            links = list(self._links.values())
        for link in links:
            link.connection.abort(reason)

    def close(self, timeout_s: float) -> None:
        """Closes all links once their peers hold what was sent, or time is up."""
        with self._lock:
            links, self._links = list(self._links.values()), {}
            has_failed = self._failure is not None
            self._failure = self._failure or "the communicator is closed"
        deadline_s = time.monotonic() + timeout_s
        for link in links:
            if not has_failed:
                # A peer that has gone already no longer needs what was sent to it.
                with contextlib.suppress(EngineError):
                    link.flush(max(deadline_s - time.monotonic(), 0.001))
        for link in links:
            link.close()
