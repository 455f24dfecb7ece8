"""How the coordinator's connections are set up."""

import socket

import pytest

from farstep.coordinator.server import open_listener


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_accepted_connections_send_small_messages_at_once(host: str) -> None:
    """A newcomer would wait 40 ms for the addresses of the others: it is silent until it has all of them."""
    try:
        listener = open_listener(host, 0)
    except OSError as error:
        pytest.skip(f"no such address here: {error}")
    with listener:
        target = "127.0.0.1" if host == "127.0.0.1" else "::1"
        with (
            socket.create_connection((target, listener.getsockname()[1]), timeout=5.0),
            listener.accept()[0] as accepted,
        ):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
