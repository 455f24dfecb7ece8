"""Path mode `srv6` over real sockets on ::1: every path leads there, and the flow label tells which it was."""

import dataclasses
import ipaddress
import logging
import socket
import struct
import threading

import numpy as np
import pytest

from farstep.engine import (
    Endpoint,
    EndpointProfile,
    EngineError,
    InvalidFieldError,
    PortConfig,
    SecurityProfile,
)
from farstep.engine.descriptor import ConnectionDescriptor
from farstep.engine.path_mode import why_never_srv6, why_not_srv6
from farstep.mrc import codec
from farstep.mrc.addressing import Attachment, PathTemplate, SrEv
from tests.integration.engine_pair import WAIT_S, connect, engine_pair
from tests.integration.wiretap import identities

PLANES = 2
UPLINKS = 6
PROFILE = EndpointProfile(path_mode="srv6", mtu_bytes=1024, seed=3)
LABEL_MARK = 0x80000
FLOW_INFO, FLOW_INFO_SEND, NO_CHECK6_TX, NO_CHECK6_RX = 11, 33, 101, 102


def attachment(leaf: int, **changed: int) -> Attachment:
    return Attachment(**({"block": 0xFCBBBBBB, "leaf": leaf, "downlink": 1, "uplinks": UPLINKS} | changed))


def ports(leaf: int, planes: range = range(PLANES), **changed: int) -> list[PortConfig]:
    return [PortConfig("[::1]:0", plane=plane, attachment=attachment(leaf, **changed)) for plane in planes]


@dataclasses.dataclass(frozen=True)
class Home:
    """A path of which nothing is left but the loopback address."""

    address = ipaddress.IPv6Address("::1")


@pytest.fixture
def loopback(monkeypatch):
    """All paths and arrivals are ::1, so that no fabric is needed."""
    monkeypatch.setattr(Attachment, "arrival", lambda self, plane: Home.address)
    monkeypatch.setattr(Attachment, "gateway", lambda self, plane: Home.address)
    monkeypatch.setattr(PathTemplate, "path", lambda self, ev: Home())


def evs(plane: int) -> set[int]:
    return {SrEv(plane, uplink).value for uplink in range(UPLINKS)}


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize("mtu_bytes", [512, 4096, 16_000])
def test_a_transfer_is_whole_and_takes_every_path(mtu_bytes):
    profile = dataclasses.replace(PROFILE, mtu_bytes=mtu_bytes)
    with engine_pair(ports(0), ports_b=ports(1), profile=profile) as pair:
        assert pair.a.path_mode == pair.b.path_mode == "srv6"
        source, target, region, landing = pair.buffers(200 * mtu_bytes * 15)
        pair.to_b.write(region, 0, len(source), landing.remote, 0, immediate=9)
        assert pair.to_a.wait_immediate(WAIT_S) == 9
        assert np.array_equal(source, target)
        paths = pair.to_b.stats(with_paths=True).paths
        for plane in range(PLANES):
            assert {path.value for path in paths if path.plane == plane} == evs(plane)
        assert all(path.tx_packets for path in paths)
        assert pair.b.stats().rejected["bad_icrc"] == 0


@pytest.mark.usefixtures("loopback")
def test_hosts_of_one_leaf_have_one_path_in_each_plane():
    with engine_pair(ports(0), ports_b=ports(0, downlink=2), profile=PROFILE) as pair:
        pair.send(bytes(100_000))
        paths = pair.to_b.stats(with_paths=True).paths
        assert [path.value for path in paths] == [SrEv(plane, 0).value for plane in range(PLANES)]


@pytest.mark.usefixtures("loopback")
def test_active_paths_are_chosen_before_backups():
    ev = dataclasses.replace(PROFILE.ev, active_per_plane=3, backup_per_plane=2)
    with engine_pair(ports(0), ports_b=ports(1), profile=dataclasses.replace(PROFILE, ev=ev)) as pair:
        paths = pair.to_b.stats(with_paths=True).paths
        assert [path.active for path in paths] == [True, True, True, False, False] * PLANES
        assert len({path.value for path in paths}) == len(paths)


@pytest.mark.usefixtures("loopback")
def test_public_addresses_are_for_other_networks():
    with (
        Endpoint(ports(0), profile=PROFILE, name="a", site="east") as a,
        Endpoint(ports(1), profile=PROFILE, name="b", site="west") as b,
    ):
        b.set_public_addresses(0, {"*": ("192.0.2.1", 9)})
        to_b, to_a = connect(a, b)
        region, landing = a.register(bytes(5000)), b.register(bytearray(5000))
        to_b.write(region, 0, 5000, landing.remote, 0, immediate=1).wait(WAIT_S)
        assert to_a.wait_immediate(WAIT_S) == 1


class Tap(threading.Thread):
    """Stands in front of a port, and forwards every datagram with its flow label."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        for level, option in (
            (socket.IPPROTO_UDP, NO_CHECK6_TX),
            (socket.IPPROTO_UDP, NO_CHECK6_RX),
            (socket.IPPROTO_IPV6, FLOW_INFO),
            (socket.IPPROTO_IPV6, FLOW_INFO_SEND),
        ):
            self.socket.setsockopt(level, option, 1)
        self.socket.bind(("::1", 0))
        self.socket.settimeout(0.05)
        self.target = target
        self.seen: list[tuple[int, bytes]] = []
        self.is_done = False

    @property
    def port(self) -> int:
        return self.socket.getsockname()[1]

    def run(self) -> None:
        while not self.is_done:
            try:
                datagram, control, _, _ = self.socket.recvmsg(65_536, 256)
            except TimeoutError:
                continue
            labels = [
                struct.unpack("!I", data)[0] & 0xFFFFF for _, kind, data in control if kind == FLOW_INFO
            ]
            label = labels[0] if labels else 0
            self.seen.append((label, datagram))
            self.socket.sendto(datagram, (*self.target, label, 0))
        self.socket.close()


def through(taps: list[Tap], descriptor: bytes) -> bytes:
    """The descriptor with the ports of the taps in place of its own."""
    end = ConnectionDescriptor.decode(descriptor)
    moved = tuple(dataclasses.replace(port, port=tap.port) for port, tap in zip(end.ports, taps, strict=True))
    return dataclasses.replace(end, ports=moved).encode()


@pytest.mark.usefixtures("loopback")
def test_flow_labels_carry_the_ev_and_acknowledgements_echo_it():
    with (
        Endpoint(ports(0), profile=PROFILE, name="a") as a,
        Endpoint(ports(1), profile=PROFILE, name="b") as b,
    ):
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        forward, back = [[Tap(address) for address in end.ports] for end in (b, a)]
        for tap in forward + back:
            tap.start()
        to_b.connect(through(forward, to_a.descriptor))
        to_a.connect(through(back, to_b.descriptor))
        length = 600_000
        source = np.random.default_rng(1).integers(0, 256, length, dtype=np.uint8)
        target = np.zeros(length, np.uint8)
        region, landing = a.register(source), b.register(target)
        to_b.write(region, 0, length, landing.remote, 0, immediate=1).wait(WAIT_S)
        assert np.array_equal(source, target)
        for tap in forward + back:
            tap.is_done = True
            tap.join()

    sent: set[int] = set()
    for plane, tap in enumerate(forward):
        labels = {label for label, _ in tap.seen}
        assert {(label ^ LABEL_MARK) << 16 for label in labels} <= evs(plane)
        sent |= {(label ^ LABEL_MARK) << 16 for label in labels}
    assert len(sent) == PLANES * UPLINKS
    echoes: set[int] = set()
    for plane, tap in enumerate(back):
        assert tap.seen
        # Acknowledgements and probes take paths of the way back.
        assert {(label ^ LABEL_MARK) << 16 for label, _ in tap.seen} <= evs(plane)
        for _, datagram in tap.seen:
            decoded = codec.decode(datagram)
            assert isinstance(decoded, codec.Decoded)
            if isinstance(decoded.packet, codec.Sack):
                echoes.add(decoded.packet.seth.entropy)
    assert echoes
    assert echoes <= sent


# ---- where it is not possible ---------------------------------------------------------------------------------------


def test_a_host_without_the_arrival_address_is_told_so():
    with pytest.raises(
        EngineError, match=r"srv6 is not possible here: the arrival address fcbb:bbbb:c001:: of"
    ):
        Endpoint(ports(0), profile=PROFILE)


def test_auto_falls_back_with_a_warning(caplog):
    profile = dataclasses.replace(PROFILE, path_mode="auto")
    with (
        caplog.at_level(logging.WARNING, "farstep.engine"),
        engine_pair(ports(0), ports_b=ports(1), profile=profile) as pair,
    ):
        assert pair.a.path_mode == "udp"
        pair.send(bytes(50_000))
    assert "path mode srv6 is not possible here: the arrival address" in caplog.text
    assert "udp is used instead" in caplog.text


def test_udp_needs_no_attachments_and_ignores_them(caplog):
    profile = dataclasses.replace(PROFILE, path_mode="udp")
    with engine_pair(ports(0), ports_b=ports(1), profile=profile) as pair:
        assert pair.a.path_mode == "udp"
    assert not caplog.text


class Refusing(socket.socket):
    """A kernel that lacks one option."""

    lacks = 0

    def setsockopt(self, level, option, *value):
        if option == self.lacks:
            raise OSError(92, "Protocol not available")
        super().setsockopt(level, option, *value)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (NO_CHECK6_TX, "UDP_NO_CHECK6_TX"),
        (NO_CHECK6_RX, "UDP_NO_CHECK6_RX"),
        (FLOW_INFO_SEND, "IPV6_FLOWINFO_SEND"),
        (FLOW_INFO, "IPV6_FLOWINFO"),
    ],
)
def test_options_that_a_kernel_lacks_are_named(monkeypatch, option, name):
    monkeypatch.setattr(socket, "socket", Refusing)
    monkeypatch.setattr(Refusing, "lacks", option)
    assert why_not_srv6(attachment(0), 0) == f"the kernel has no {name} (Protocol not available)"
    assert why_never_srv6() == f"the kernel has no {name} (Protocol not available)"


def test_a_host_without_ipv6_is_told_so(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    assert why_not_srv6(attachment(0), 0) == "there is no IPv6 (Address family not supported by protocol)"
    assert why_never_srv6() == "there is no IPv6 (Address family not supported by protocol)"


def test_a_missing_route_is_named(monkeypatch):
    class Routeless(socket.socket):
        def connect(self, address):
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(Attachment, "arrival", lambda self, plane: Home.address)
    monkeypatch.setattr(socket, "socket", Routeless)
    assert why_not_srv6(attachment(5), 1) == (
        "no route leads to fcbb:bbbb:2405::, the T0 switch of plane 1 (Network is unreachable)"
    )


def test_labels_that_do_not_arrive_are_noticed(monkeypatch):
    class Deaf(socket.socket):
        def recvmsg(self, *sizes):
            data, _, flags, address = super().recvmsg(*sizes)
            return data, [], flags, address

    monkeypatch.setattr(Attachment, "arrival", lambda self, plane: Home.address)
    monkeypatch.setattr(socket, "socket", Deaf)
    assert (
        why_not_srv6(attachment(0), 0)
        == "the kernel does not tell the flow label of a packet (IPV6_FLOWINFO)"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([PortConfig("[::1]:0")], "no attachment on port 0"),
        ([*ports(0), PortConfig("[::1]:0", plane=2)], "no attachment on port 2"),
        (ports(0, range(8, 9)), "plane = 8"),
    ],
)
def test_wrong_ports_are_named(wrong, said):
    with pytest.raises(InvalidFieldError, match=said):
        Endpoint(wrong, profile=PROFILE)


def test_an_unknown_mode_is_named():
    with pytest.raises(
        InvalidFieldError, match="path_mode = 'mpls' is not valid; valid is one of auto, udp, srv6"
    ):
        EndpointProfile(path_mode="mpls")  # type: ignore[arg-type]


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (["[::1]:0"], "this end has path mode srv6, the peer udp"),
        (ports(1, range(4, 6)), "the ends share no plane: this one has 0, 1, the peer 4, 5"),
        (ports(1, block=0xFCBBCCCC), "different uSID blocks, fcbb:bbbb::/32 and fcbb:cccc::/32"),
    ],
)
def test_ends_that_do_not_fit_are_told_why(other, said):
    with (
        Endpoint(ports(0), profile=PROFILE) as a,
        Endpoint(other, profile=dataclasses.replace(PROFILE, path_mode="auto")) as b,
        pytest.raises(EngineError, match=said),
    ):
        a.create_connection().connect(b.create_connection().descriptor)


@pytest.mark.usefixtures("loopback")
def test_descriptors_carry_the_attachment():
    with Endpoint(ports(3), profile=PROFILE) as a:
        descriptor = ConnectionDescriptor.decode(a.create_connection().descriptor)
    assert descriptor.path_mode == "srv6"
    assert [port.attachment for port in descriptor.ports] == [attachment(3)] * PLANES


@pytest.mark.usefixtures("loopback")
def test_chosen_paths_carry_protected_packets(tmp_path):
    identity = identities(tmp_path, "a")["a"]
    wish = SecurityProfile(identity=identity, within_site="encrypt")
    profile = dataclasses.replace(PROFILE, security=wish)
    with engine_pair(ports(0), ports_b=ports(1), profile=profile) as pair:
        assert pair.a.path_mode == "srv6"
        assert pair.to_b.protection == "encrypt"
        content = np.random.default_rng(1).integers(0, 256, 500_000, dtype=np.uint8).tobytes()
        assert pair.send(content).tobytes() == content
        assert all(path.tx_packets for path in pair.to_b.stats(with_paths=True).paths)
        assert pair.b.stats().rejected["forged"] == 0
