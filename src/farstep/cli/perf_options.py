"""The options of `farstep perf`, named as users of iperf3 know them where they mean the same."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Bidir",
    "Bind",
    "Burst",
    "Certificates",
    "ConnectTimeout",
    "Connections",
    "Depth",
    "IntervalLength",
    "Json",
    "Latency",
    "Mtu",
    "Name",
    "NoChecksum",
    "Omit",
    "OneOff",
    "PathMode",
    "Planes",
    "Port",
    "Protect",
    "Rate",
    "Reverse",
    "Server",
    "Size",
    "Time",
    "Total",
]

Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="TCP port of the server.")]
Bind = Annotated[
    list[str] | None,
    typer.Option(
        "--bind",
        "-B",
        metavar="ADDRESS",
        help="Address of ours to send and receive at; several make a plane each.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate-mbps", min=0.01, help="Line rate of each port in 10^6 bit/s, for pacing; default: learned."
    ),
]
Json = Annotated[bool, typer.Option("--json", "-J", help="Print JSON and nothing else.")]
Certificates = Annotated[
    Path | None,
    typer.Option("--certs", metavar="DIR", help="Certificates: ca.pem, NAME.pem and NAME.key. Needs --name."),
]
Name = Annotated[str | None, typer.Option("--name", help="Whose certificate in DIR is ours.")]
Protect = Annotated[
    str,
    typer.Option(
        "--protection", metavar="off|authenticate|encrypt", help="What is done to packets at least."
    ),
]
OneOff = Annotated[bool, typer.Option("--one-off", "-1", help="End after one measurement.")]
Server = Annotated[str, typer.Argument(metavar="SERVER", help="Name or address of the server.")]
Time = Annotated[float | None, typer.Option("--time", "-t", min=0.0, help="Seconds to measure; default: 10.")]
Total = Annotated[
    str | None, typer.Option("--bytes", "-n", metavar="N[KMG]", help="Bytes to send instead of a time.")
]
Size = Annotated[
    str | None,
    typer.Option("--size", "-l", metavar="N[KMG]", help="Bytes of one write; default: 1M, latency 64."),
]
Connections = Annotated[int, typer.Option("--connections", "-P", min=1, help="Connections at the same time.")]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth",
        "-q",
        min=1,
        help="Writes in flight on each connection; default: those that hold 4M, 4 to 256.",
    ),
]
Latency = Annotated[
    bool, typer.Option("--latency", "-L", help="Measure the time of one write, there and back.")
]
Reverse = Annotated[bool, typer.Option("--reverse", "-R", help="The server sends.")]
Bidir = Annotated[bool, typer.Option("--bidir", help="Both send at the same time.")]
IntervalLength = Annotated[
    float, typer.Option("--interval", "-i", min=0.0, help="Seconds between reports; 0: none.")
]
Omit = Annotated[
    float, typer.Option("--omit", "-O", min=0.0, help="Seconds at the beginning that do not count.")
]
Planes = Annotated[
    int, typer.Option("--planes", min=1, help="Ports of each end, where addresses do not say.")
]
PathMode = Annotated[
    str, typer.Option("--path-mode", metavar="auto|udp|srv6", help="How packets find their way.")
]
Mtu = Annotated[int | None, typer.Option("--mtu", metavar="BYTES", help="Payload of a full packet.")]
Burst = Annotated[int | None, typer.Option("--burst", help="Packets that leave together on one path.")]
NoChecksum = Annotated[bool, typer.Option("--no-checksum", help="Leave the invariant CRC out of packets.")]
ConnectTimeout = Annotated[
    float, typer.Option("--connect-timeout", min=0.1, help="Seconds to wait for the server.")
]
