"""Writes Chakra traces as protobuf does, for tests: messages with their length in front."""

import struct
from pathlib import Path


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value) -> bytes:
    if isinstance(value, bool):
        body = field(27, int(value))
    elif isinstance(value, int):
        body = field(9, value)
    elif isinstance(value, float):
        body = varint(3 << 3 | 1) + struct.pack("<d", value)
    elif isinstance(value, list):
        body = field(10, field(1, b"".join(varint(item) for item in value)))
    else:
        body = field(29, value)
    return field(10, field(1, name) + body)


def node(
    number: int, kind: int, *, deps=(), data_deps=(), duration_us: int = 0, name: str = "n", **attributes
) -> bytes:
    body = field(1, number) + field(2, name) + field(3, kind)
    if deps:
        body += field(4, b"".join(varint(dep) for dep in deps))  # packed, as proto3 writes them
    for dep in data_deps:
        body += field(5, dep)  # not packed, which readers must take too
    if duration_us:
        body += field(7, duration_us)
    body += field(8, field(1, "[]"))  # inputs, which no simulation needs
    return body + b"".join(attribute(key, value) for key, value in attributes.items())


def write_trace(path: Path, nodes: list[bytes]) -> None:
    messages = [field(1, "0.0.4"), *nodes]
    path.write_bytes(b"".join(varint(len(message)) + message for message in messages))
