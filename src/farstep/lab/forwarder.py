"""Forwards datagrams between sites: sockets on both ends, carriers in between, and when to look again.

An endpoint port at a site is exposed once per other site: a peer there sends to a socket of the emulator that
stands for "this port, seen from that site". Which path of the plane a datagram takes follows from its source
port, as with equal-cost routes in a real network.
"""

from __future__ import annotations

import heapq
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farstep.fabric import Channel, ChannelState, ConfigError, EmulatedNetwork, FaultAction
from farstep.lab.buffers import BufferPool
from farstep.lab.carrier import Carrier
from farstep.lab.poller import Poller
from farstep.lab.sockets import ANCILLARY_BYTES, Address, UdpExit, open_udp, read_ancillary

EXPOSURES_MAX = 4096
"""Exposed ports; with a socket for each of up to 64 sites this already exceeds common descriptor limits."""

FLOWS_MAX = 65_536
"""Remembered source addresses of one entrance; there are no more ports on one host."""

ANSWERED_FLOWS_MAX = 1024
"""Clients of one exposed port that can be answered; each takes a socket."""

RECEIVES_PER_WAKE = 32
"""Bursts taken from one socket before others get their turn: 2 MB, well below a millisecond of work."""

RELEASE_INTERVAL_NS = 200_000
"""Packets that become due within this are sent together: 0.1 ms late on average, and a handful of 4 KiB
packets per send at 1 Gbit/s. A packet that is due after a pause leaves at its own time."""

WAIT_NS_MAX = 1_000_000_000
"""An arrival time further back than this is the system's clock being set, not a packet having waited."""

_HASH_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


class Entrance:
    """A socket at which packets enter the emulation, and where they go from there."""

    __slots__ = (
        "answers_by_client",
        "carriers",
        "exit",
        "flows",
        "overflow",
        "salt",
        "socket",
        "uses_modulo",
    )

    def __init__(
        self, bind: Address | None, carriers: Sequence[Carrier], salt: int, uses_modulo: bool
    ) -> None:
        self.socket = open_udp(bind=bind)
        self.carriers = tuple(carriers)
        self.exit: UdpExit | None = None
        self.flows: dict[Address, tuple[Carrier, UdpExit]] = {}
        self.answers_by_client: dict[Address, Entrance] | None = None
        self.overflow = 0
        self.salt = salt
        self.uses_modulo = uses_modulo

    def choose(self, source: Address) -> Carrier:
        """Returns the path a datagram takes by its source address.

        Paths known to be down are left to the others; a silent outage keeps its traffic.
        """
        carriers: Sequence[Carrier] = self.carriers
        if len(carriers) == 1:
            return carriers[0]
        number = source[1] if self.uses_modulo else self._hash(source)
        chosen = carriers[number % len(carriers)]
        if chosen.state.is_down and chosen.state.is_detected:
            usable = [
                carrier for carrier in carriers if not (carrier.state.is_down and carrier.state.is_detected)
            ]
            if usable:
                return usable[number % len(usable)]
        return chosen

    def _hash(self, source: Address) -> int:
        word = (zlib.crc32(source[0].encode()) << 16 | source[1]) ^ self.salt
        return (word * _HASH_MULTIPLIER & _WORD) >> 33


@dataclass(slots=True)
class Exposure:
    """One endpoint port and the sockets that stand for it at the other sites."""

    site: str
    plane: int
    address: Address
    exit: UdpExit
    can_answer: bool
    entrances: dict[str, Entrance] = field(default_factory=dict)


class Forwarder:
    """Carries UDP datagrams over the paths of a network.

    Args:
        network: sites and paths.
        poller: tells when sockets are readable.
        listen_host: address of this machine at which peers reach the emulator.
    """

    def __init__(self, network: EmulatedNetwork, poller: Poller, listen_host: str = "127.0.0.1") -> None:
        self.network = network
        self._poller = poller
        self._listen_host = listen_host
        self._pool = BufferPool()
        self.carriers: dict[Channel, Carrier] = {
            channel: Carrier(channel, state, network.seed, self._pool)
            for channel, state in network.states.items()
        }
        self._exposures: dict[tuple[str, int, Address], Exposure] = {}
        self._wakeups: list[tuple[int, int, Carrier]] = []
        self._sequence = 0
        self._not_before_ns = 0

    # -- who talks to whom --------------------------------------------------------------------------------

    def expose(
        self,
        site: str,
        plane: int,
        address: Address,
        *,
        listen: Mapping[str, Address] | None = None,
        can_answer: bool = False,
    ) -> dict[str, Address]:
        """Makes an endpoint port reachable from the other sites.

        Args:
            site: where the port is.
            plane: plane the port belongs to.
            address: where packets for it are delivered.
            listen: wanted address of the socket per site; left out: any free port.
            can_answer: also carries back what the port sends to the source address of a datagram, for
                programs that answer whoever spoke to them instead of knowing their peers' addresses.

        Returns:
            For each site that can reach the port, the address peers there send to; for the port's own site
            its real address.

        Raises:
            ConfigError: unknown site or plane, or an address that cannot be used.
        """
        self._check(site, plane)
        key = (site, plane, address)
        known = self._exposures.get(key)
        if known is None:
            if len(self._exposures) >= EXPOSURES_MAX:
                raise ConfigError(f"at most {EXPOSURES_MAX} ports can be exposed")
            known = self._open(site, plane, address, listen or {}, can_answer)
            self._exposures[key] = known
        reachable = {site: address}
        for from_site, entrance in known.entrances.items():
            reachable[from_site] = entrance.socket.getsockname()[:2]
        return reachable

    def withdraw(self, site: str, plane: int, address: Address) -> bool:
        """Closes the sockets of an exposed port; packets on their way to it are dropped at the end.

        Returns:
            False if the port was not exposed.
        """
        exposure = self._exposures.pop((site, plane, address), None)
        if exposure is None:
            return False
        for entrance in exposure.entrances.values():
            for answering in (entrance.answers_by_client or {}).values():
                self._close(answering)
            self._close(entrance)
        exposure.exit.close()
        return True

    def close(self) -> None:
        """Closes all sockets."""
        for site, plane, address in tuple(self._exposures):
            self.withdraw(site, plane, address)

    def _check(self, site: str, plane: int) -> None:
        if site not in self.network.sites:
            raise ConfigError(f'site = "{site}": no such site; known sites: {", ".join(self.network.sites)}')
        planes = sorted({channel.plane for channel in self.carriers if channel.to_site == site})
        if plane not in planes:
            listed = ", ".join(map(str, planes)) or "none"
            raise ConfigError(
                f"plane = {plane}: no path of this plane leads to site {site}; planes there: {listed}"
            )

    def _open(
        self, site: str, plane: int, address: Address, listen: Mapping[str, Address], can_answer: bool
    ) -> Exposure:
        for from_site in listen:
            self._check(from_site, plane)
        try:
            exposure = Exposure(site, plane, address, UdpExit(open_udp(connect=address)), can_answer)
        except OSError as error:
            raise ConfigError(
                f"address = {address[0]}:{address[1]}: cannot be reached: {error.strerror}"
            ) from error
        host = self._listen_host
        if (":" in address[0]) != (":" in host):
            host = "::1" if ":" in address[0] else "127.0.0.1"
        for from_site in self.network.sites:
            carriers = self._between(from_site, site, plane)
            if not carriers:
                continue
            bind = listen.get(from_site, (host, 0))
            try:
                entrance = self._enter(bind, carriers, f"{from_site}:{site}:{plane}")
            except OSError as error:
                for opened in exposure.entrances.values():
                    self._close(opened)
                exposure.exit.close()
                raise ConfigError(
                    f"listen = {bind[0]}:{bind[1]}: cannot be used: {error.strerror}"
                ) from error
            entrance.exit = exposure.exit
            if can_answer:
                entrance.answers_by_client = {}
            exposure.entrances[from_site] = entrance
            self._watch(entrance, exposure, from_site)
        return exposure

    def _between(self, from_site: str, to_site: str, plane: int) -> list[Carrier]:
        return [
            carrier
            for channel, carrier in self.carriers.items()
            if (channel.from_site, channel.to_site, channel.plane) == (from_site, to_site, plane)
        ]

    def _enter(self, bind: Address | None, carriers: Sequence[Carrier], name: str) -> Entrance:
        salt = zlib.crc32(f"{self.network.seed}:{name}".encode())
        return Entrance(bind, carriers, salt, self.network.port_to_path == "modulo")

    def _watch(self, entrance: Entrance, exposure: Exposure, from_site: str) -> None:
        self._poller.add(entrance.socket.fileno(), lambda: self._receive(entrance, exposure, from_site))

    def _close(self, entrance: Entrance) -> None:
        self._poller.remove(entrance.socket.fileno())
        entrance.socket.close()

    # -- the way of a datagram ----------------------------------------------------------------------------

    def _receive(self, entrance: Entrance, exposure: Exposure, from_site: str) -> None:
        receive = entrance.socket.recvmsg_into
        pool, flows = self._pool, entrance.flows
        wall_offset_ns = time.time_ns() - time.monotonic_ns()
        for _ in range(RECEIVES_PER_WAKE):
            space = pool.space()
            buffer = space if space is not None else _SPILL
            try:
                num_bytes, ancillary, _, source = receive([buffer], ANCILLARY_BYTES)
            except BlockingIOError:
                return
            except ConnectionRefusedError:
                continue  # answers a datagram sent earlier; what waits in the socket is still to be read
            segment_bytes, tos, wall_ns, overflow = read_ancillary(ancillary, num_bytes)
            if overflow:
                entrance.overflow = overflow
            way = flows.get(source)
            if way is None:
                way = self._new_flow(entrance, exposure, from_site, source)
            carrier, exit = way
            if space is None:
                carrier.drop(num_bytes, segment_bytes, "memory")
                continue
            chunk = pool.take(num_bytes)
            # The kernel's time of arrival: a packet read late is not a packet sent late, and bursts that
            # waited for this process must not look like one large burst to the queue.
            now_ns = time.monotonic_ns()
            arrived_ns = wall_ns - wall_offset_ns
            if not now_ns - WAIT_NS_MAX <= arrived_ns <= now_ns:
                arrived_ns = now_ns
            carrier.offer(arrived_ns, space[:num_bytes], segment_bytes, tos, exit, chunk)
            pool.release(chunk)
            if not carrier.wakeup:
                self._arm(carrier)

    def _new_flow(
        self, entrance: Entrance, exposure: Exposure, from_site: str, source: Address
    ) -> tuple[Carrier, UdpExit]:
        if len(entrance.flows) >= FLOWS_MAX:
            entrance.flows.clear()
        assert entrance.exit is not None
        exit = entrance.exit
        if entrance.answers_by_client is not None:
            exit = self._answering_exit(entrance, exposure, from_site, source)
        way = (entrance.choose(source), exit)
        entrance.flows[source] = way
        return way

    def _answering_exit(
        self, entrance: Entrance, exposure: Exposure, from_site: str, client: Address
    ) -> UdpExit:
        """Gives a client an exit socket of its own; answers that arrive there are carried back to it."""
        assert entrance.answers_by_client is not None
        assert entrance.exit is not None
        known = entrance.answers_by_client.get(client)
        if known is not None:
            return UdpExit(known.socket, exposure.address)
        if len(entrance.answers_by_client) >= ANSWERED_FLOWS_MAX:
            return entrance.exit
        back = self._between(exposure.site, from_site, exposure.plane)
        any_port = ("::", 0) if ":" in exposure.address[0] else ("", 0)
        answering = self._enter(any_port, back, f"{exposure.site}:{from_site}:{exposure.plane}")
        answering.exit = UdpExit(entrance.socket, client)
        entrance.answers_by_client[client] = answering
        self._watch(answering, exposure, exposure.site)
        return UdpExit(answering.socket, exposure.address)

    # -- time ---------------------------------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int | None:
        """When `release` has something to do; None while nothing is on its way."""
        if not self._wakeups:
            return None
        return max(self._wakeups[0][0], self._not_before_ns)

    def release(self, now_ns: int) -> None:
        """Sends what is due."""
        wakeups = self._wakeups
        while wakeups and wakeups[0][0] <= now_ns:
            _, number, carrier = heapq.heappop(wakeups)
            if number != carrier.wakeup:
                continue  # replaced when the channel changed
            carrier.wakeup = 0
            carrier.release(now_ns)
            self._arm(carrier)
        self._not_before_ns = now_ns + RELEASE_INTERVAL_NS

    def _arm(self, carrier: Carrier) -> None:
        due_ns = carrier.next_due_ns
        if due_ns is not None:
            self._sequence += 1
            carrier.wakeup = self._sequence
            heapq.heappush(self._wakeups, (due_ns, self._sequence, carrier))

    # -- faults and figures -------------------------------------------------------------------------------

    def carry_out(self, action: FaultAction) -> None:
        """Gives channels the states a fault action says."""
        for channel, state in action.states:
            self.set_state(channel, state)

    def set_state(self, channel: Channel, state: ChannelState) -> None:
        """Changes one channel."""
        carrier = self.carriers[channel]
        carrier.set_state(state, time.monotonic_ns())
        carrier.wakeup = 0
        self._arm(carrier)
        for exposure in self._exposures.values():
            for entrance in exposure.entrances.values():
                entrance.flows.clear()
                for answering in (entrance.answers_by_client or {}).values():
                    answering.flows.clear()

    @property
    def overflow_packets(self) -> int:
        """Datagrams the kernel dropped before the emulator could read them."""
        entrances = [
            entrance for exposure in self._exposures.values() for entrance in exposure.entrances.values()
        ]
        answering = [back for entrance in entrances for back in (entrance.answers_by_client or {}).values()]
        return sum(entrance.overflow for entrance in (*entrances, *answering))

    @property
    def undeliverable_packets(self) -> int:
        """Datagrams the kernel refused to send, mostly because nobody listens at the destination."""
        return sum(exposure.exit.undeliverable for exposure in self._exposures.values())


_SPILL = memoryview(bytearray(65_536))
"""Takes datagrams for which there is no memory."""
