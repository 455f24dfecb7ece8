"""One end of a connection at a NIC of a lab, told what to do line by line; `python lab_host.py`.

Says its descriptor and its region, and takes {"connect": ...} and {"write": bytes} or {"read": bytes} as JSON lines.
"""

import hashlib
import json
import socket
import sys
import threading
from typing import Any

import numpy as np

from farstep.engine import Endpoint, EndpointProfile, RemoteRegion
from farstep.engine.address_file import fabric_ports_here
from farstep.mrc import codec

WAIT_S = 60.0
BUFFER_BYTES = 8 << 20
ETHERTYPE_IPV6 = 0x86DD
IPV6_AND_UDP_BYTES = 48


class Echoes(threading.Thread):
    """Collects the entropy values that acknowledgements to this host name."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETHERTYPE_IPV6))
        self.found: set[int] = set()

    def run(self) -> None:
        while True:
            packet, address = self.socket.recvfrom(65_536)
            if address[2] == socket.PACKET_OUTGOING or packet[6] != socket.IPPROTO_UDP:
                continue
            decoded = codec.decode(packet[IPV6_AND_UDP_BYTES:])
            if isinstance(decoded, codec.Decoded) and isinstance(decoded.packet, codec.Sack):
                self.found.add(decoded.packet.seth.entropy)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    ports = fabric_ports_here()
    assert ports is not None
    echoes = Echoes()
    echoes.start()
    with Endpoint(ports, profile=EndpointProfile(**json.loads(sys.argv[1]))) as endpoint:
        connection = endpoint.create_connection(peer_name="peer")
        memory = np.random.default_rng().integers(0, 256, BUFFER_BYTES, dtype=np.uint8)
        region = endpoint.register(memory)
        say(descriptor=connection.descriptor.hex(), region=region.remote, mode=endpoint.path_mode)
        remote = region.remote
        for line in sys.stdin:
            order = json.loads(line)
            if "connect" in order:
                connection.connect(bytes.fromhex(order["connect"]))
                remote = RemoteRegion(*order["region"])
                say(connected=True)
            elif "write" in order:
                length = order["write"]
                connection.write(region, 0, length, remote, 0, immediate=1).wait(WAIT_S)
                say(digest=hashlib.sha256(memory[:length].tobytes()).hexdigest())
            elif "read" in order:
                connection.wait_immediate(WAIT_S)
                say(digest=hashlib.sha256(memory[: order["read"]].tobytes()).hexdigest())
            else:
                stats = connection.stats(with_paths=True)
                paths = [[path.value, path.state.name, path.tx_packets, path.lost] for path in stats.paths]
                say(paths=paths, echoes=sorted(echoes.found), rejected=endpoint.stats().rejected)


if __name__ == "__main__":
    main()
