"""What the kernel tells about a burst, and what is done when it refuses one."""

import errno
import socket
import struct

import pytest

from farstep.lab.sockets import UdpExit, read_ancillary

SOL_UDP, UDP_SEGMENT, UDP_GRO, SO_TIMESTAMPNS, SO_RXQ_OVFL = 17, 103, 104, 35, 40


class FakeSocket:
    """Records sends; raises what it is told to, once for each entry."""

    family = socket.AF_INET

    def __init__(self, *errors):
        self.errors = list(errors)
        self.sent = []

    def sendmsg(self, views, ancillary=(), flags=0, address=None):
        if self.errors and (number := self.errors.pop(0)):
            raise OSError(number, "refused")
        self.sent.append((b"".join(views), list(ancillary), address))

    def close(self):
        self.sent.append("closed")


def test_control_messages_tell_size_class_time_and_overflow():
    ancillary = [
        (SOL_UDP, UDP_GRO, struct.pack("=i", 1200)),
        (socket.IPPROTO_IP, socket.IP_TOS, b"\x03"),
        (socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("@ll", 5, 7)),
        (socket.SOL_SOCKET, SO_RXQ_OVFL, struct.pack("=I", 9)),
    ]
    assert read_ancillary(ancillary, 3000) == (1200, 3, 5_000_000_007, 9)
    assert read_ancillary([(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, struct.pack("=i", 2))], 70) == (
        70,
        2,
        0,
        0,
    )
    assert read_ancillary([], 0).segment_bytes == 1


def test_a_burst_leaves_in_one_call_with_its_class():
    fake = FakeSocket()
    UdpExit(fake).send([b"aabb", b"c"], 2, 3, 0b10)
    assert fake.sent == [
        (
            b"aabbc",
            [
                (SOL_UDP, UDP_SEGMENT, struct.pack("=H", 2)),
                (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", 2)),
            ],
            None,
        )
    ]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EMSGSIZE, errno.EIO])
def test_without_segmentation_offload_datagrams_leave_one_by_one(number):
    fake = FakeSocket(number)
    way = UdpExit(fake, ("h", 1))
    way.send([memoryview(b"aabb"), memoryview(b"c")], 2, 3, 0)
    way.send([memoryview(b"ddee")], 2, 2, 0)
    assert [data for data, _, _ in fake.sent] == [b"aa", b"bb", b"c", b"dd", b"ee"]
    assert {address for _, _, address in fake.sent} == {("h", 1)}


def test_a_refusal_of_an_earlier_datagram_does_not_lose_this_one():
    fake = FakeSocket(errno.ECONNREFUSED)
    way = UdpExit(fake)
    way.send([b"x"], 1, 1, 0)
    assert [data for data, _, _ in fake.sent] == [b"x"]
    assert way.undeliverable == 1


def test_what_cannot_be_delivered_is_counted_and_other_errors_are_not_hidden():
    way = UdpExit(FakeSocket(errno.ENOBUFS, errno.EHOSTUNREACH, errno.EBADF))
    way.send([b"xy"], 1, 2, 0)
    way.send([b"x"], 1, 1, 0)
    assert way.undeliverable == 3
    with pytest.raises(OSError, match="refused"):
        way.send([b"x"], 1, 1, 0)
    way.close()
    way.send([b"x"], 1, 1, 0)
    assert way.undeliverable == 4
