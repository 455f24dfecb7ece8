"""Membership inside one process: the same minds on both sides, threads instead of a network.

For tests, and for a run of a single replica group that needs no coordinator.

    hub = LocalHub(MembershipConfig(groups=2, min_groups=1))
    one, two = hub.join("a-0"), hub.join("b-0")
    generation = one.wait_generation(after=0)
    hub.kill(two)                                    # as if its process had been killed
    one.wait_generation(after=generation.number)     # urgent, without b-0
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from farstep.membership import messages as wire
from farstep.membership.desk import Desk
from farstep.membership.effects import AskKernel, Hangup, Note, Send
from farstep.membership.proposer import Proposer
from farstep.membership.records import MemberInfo, MembershipConfig, Record, Wants
from farstep.membership.roster import Absence
from farstep.membership.succession import TICK_NS

__all__ = ["LocalHub", "LocalMembership"]


class LocalMembership(Desk):
    """One member of a :class:`LocalHub`."""

    def __init__(self, hub: LocalHub, info: MemberInfo, run: str, wants: Wants) -> None:
        super().__init__(info, run, wants)
        self._hub = hub

    def _wake(self) -> None:
        self._hub.poke()

    def _line_state(self) -> str:
        return "the coordinator is down"

    def rejoin(self, wants: Wants | None = None) -> None:
        """Comes back as a new incarnation of the same replica group, after an eviction."""
        super().rejoin(wants)
        self._hub.reconnect(self)

    def close(self) -> None:
        """Ends this membership for good; the run goes on without it."""
        if threading.current_thread() is not self._hub.thread and self._hub.serves(self):
            self._await_end()
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._hub.detach(self, Absence.LEFT)


class LocalHub:
    """A coordinator and the lines to its members, inside one process.

    Args:
        config: how generations are formed; by default one replica group is enough, and at once.
        on_event: called with kind and fields of everything the coordinator notes.
        uses_json: passes every message through its JSON form, as the network does.
    """

    def __init__(
        self,
        config: MembershipConfig | None = None,
        *,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        uses_json: bool = False,
    ) -> None:
        self.config = config or MembershipConfig(settle_s=0.0)
        self.events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=10_000)
        """Kind and fields of the latest events."""
        self._on_event = on_event
        self._uses_json = uses_json
        self._lock = threading.Lock()
        self._poked = threading.Event()  # apart from the lock: members poke while they hold theirs
        self._proposer: Proposer | None = Proposer(self.config, time.monotonic_ns())
        self._links: dict[int, LocalMembership] = {}
        self._members: list[LocalMembership] = []
        self._stopped: set[LocalMembership] = set()
        self._next_link = 1
        self._dead: list[str] = []
        self._is_closing = False
        self._inbox: deque[Callable[[Proposer], None]] = deque()
        self.thread = threading.Thread(target=self._run, name="farstep-local-hub", daemon=True)
        """Carries all messages, and calls back."""
        self.thread.start()

    def join(
        self, name: str, *, site: str = "", wants: Wants = "seat", num_ranks: int = 1, **labels: str
    ) -> LocalMembership:
        """Makes a member; it is connected at once, or when the coordinator is back."""
        info = MemberInfo.create(name, site=site, num_ranks=num_ranks, labels=labels)
        return self.connect(info, wants=wants)

    def connect(self, info: MemberInfo, *, wants: Wants = "seat") -> LocalMembership:
        """Makes a member of this description, as `MembershipClient` does over the network."""
        # All live in one process: the kernel cannot tell them apart.
        unknown = info.model_copy(update={"process": ""})
        membership = LocalMembership(self, unknown, self.config.run, wants)
        with self._lock:
            self._members.append(membership)
        self.poke()
        return membership

    def kill(self, membership: LocalMembership, *, is_certified: bool = True) -> None:
        """Makes a member vanish as if its process had been killed.

        Args:
            membership: whose.
            is_certified: somebody on its host has seen it exit, as a launcher does.
        """
        self.detach(membership, Absence.LOST, is_certified=is_certified)

    def stop(self, membership: LocalMembership) -> None:
        """Makes a member hang: its connection stays, nothing goes in or out."""
        with self._lock:
            self._stopped.add(membership)

    def resume(self, membership: LocalMembership) -> None:
        """Lets a hung member go on."""
        with self._lock:
            self._stopped.discard(membership)
        self.poke()

    def kill_coordinator(self) -> None:
        """Makes the coordinator vanish, with everything it knew."""
        with self._lock:
            self._proposer = None
            self._inbox.clear()
            for membership in self._links.values():
                with membership._changed:
                    membership._core.disconnected()
            self._links.clear()

    def start_coordinator(self) -> None:
        """Starts a coordinator that knows nothing; the members find it."""
        with self._lock:
            self._proposer = Proposer(self.config, time.monotonic_ns())
        self.poke()

    def command(self, run: Callable[[Proposer, int], Any]) -> Any:
        """Runs an operator's command, such as ``lambda proposer, now_ns: proposer.drain("a-0", "", now_ns)``."""
        with self._lock:
            assert self._proposer is not None, "the coordinator is down"
            result = run(self._proposer, time.monotonic_ns())
        self.poke()
        return result

    def poke(self) -> None:
        """Has the hub look at once."""
        self._poked.set()

    def detach(self, membership: LocalMembership, absence: Absence, *, is_certified: bool = False) -> None:
        """Ends a member's line."""
        with self._lock:
            if membership in self._members:
                self._members.remove(membership)
            link = next((link for link, other in self._links.items() if other is membership), None)
            if link is not None:
                del self._links[link]
                if absence is Absence.LEFT:  # what it has said before it closed arrives
                    with membership._changed:
                        said, membership._core.outbox = membership._core.outbox, []
                    for message in said:
                        self._inbox.append(_saying(link, self._coded(message)))
                self._inbox.append(lambda proposer: proposer.on_closed(link, absence, time.monotonic_ns()))
            if is_certified:
                self._dead.append(membership.member.member_id)
        self.poke()

    def reconnect(self, membership: LocalMembership) -> None:
        """Ends a member's line and gives it a new one."""
        self.detach(membership, Absence.LEFT)
        with self._lock:
            self._members.append(membership)
        self.poke()

    def serves(self, membership: LocalMembership) -> bool:
        """Whether a member has a line, or gets one as soon as there is a coordinator."""
        with self._lock:
            return membership in self._members and not self._is_closing

    def close(self) -> None:
        """Ends the hub; members are left as without a coordinator."""
        self._is_closing = True
        self._poked.set()
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout=5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the hub's thread ----

    def _run(self) -> None:
        next_heartbeat_ns = 0
        while True:
            with self._lock:
                wait_ns = self._proposer.wait_ns() if self._proposer else TICK_NS
            self._poked.wait(wait_ns / 1e9)
            self._poked.clear()
            if self._is_closing:
                return
            now_ns = time.monotonic_ns()
            has_beat = now_ns >= next_heartbeat_ns
            if has_beat:
                next_heartbeat_ns = now_ns + round(self.config.heartbeat_s * 1e9)
            self._connect()
            self._upwards(has_beat, now_ns)
            self._downwards(time.monotonic_ns())

    def _connect(self) -> None:
        with self._lock:
            if self._proposer is None:
                return
            linked = set(self._links.values())
            for membership in self._members:
                if membership not in linked and membership not in self._stopped:
                    link = self._next_link
                    self._next_link += 1
                    self._links[link] = membership
                    with membership._changed:
                        membership._is_reborn = False
                        hello = membership._core.hello()
                    self._proposer.on_message(link, self._coded(hello), time.monotonic_ns())

    def _upwards(self, has_beat: bool, now_ns: int) -> None:
        """Takes what members say to the coordinator."""
        with self._lock:
            proposer = self._proposer
            if proposer is None:
                return
            while self._inbox:
                self._inbox.popleft()(proposer)
            for member_id in self._dead:
                proposer.on_process_state(member_id, True, time.monotonic_ns())
            for link, membership in list(self._links.items()):
                if membership in self._stopped:
                    continue
                with membership._changed:
                    if not membership._core.is_welcome:
                        continue
                    outbox = list(membership._core.outbox)
                    membership._core.outbox.clear()
                    if has_beat:
                        outbox.append(membership._core.heartbeat(now_ns))
                for message in outbox:
                    proposer.on_message(link, self._coded(message), time.monotonic_ns())
            proposer.on_tick(time.monotonic_ns())

    def _downwards(self, now_ns: int) -> None:
        """Carries out what the coordinator wants, without the hub's lock where callbacks may run."""
        with self._lock:
            effects = self._proposer.take_effects() if self._proposer else []
        for effect in effects:
            match effect:
                case Send(link, message):
                    membership = self._links.get(link)
                    if membership is not None and not self._hold(link, membership, message):
                        membership._receive(self._decoded(message), now_ns)
                case Hangup(link, code, _):
                    with self._lock:
                        membership = self._links.pop(link, None)
                        if (
                            membership is not None
                            and code == wire.CLOSE_REFUSED
                            and membership in self._members
                        ):
                            if membership._fatal is not None:
                                self._members.remove(membership)
                            else:
                                with membership._changed:
                                    membership._core.disconnected()
                case Note(kind, fields, member, _):
                    self.events.append((kind, {"member": member, **fields}))
                    if self._on_event is not None:
                        self._on_event(kind, {"member": member, **fields})
                case AskKernel():
                    pass  # all members live in this very process
        if effects:
            self.poke()

    def _hold(self, link: int, membership: LocalMembership, message: Record) -> bool:
        """Keeps back what a hung member cannot read now."""
        with self._lock:
            if membership not in self._stopped:
                return False
            self._inbox.append(lambda proposer: proposer._effects.append(Send(link, message)))
            return True

    def _coded(self, message: Record) -> Any:
        return wire.decode_from_member(wire.encode(message)) if self._uses_json else message

    def _decoded(self, message: Record) -> Any:
        return wire.decode_from_coordinator(wire.encode(message)) if self._uses_json else message


def _saying(link: int, message: Any) -> Callable[[Proposer], None]:
    return lambda proposer: proposer.on_message(link, message, time.monotonic_ns())
