"""Reads Chakra execution traces: the protobuf messages of one rank's file, without a protobuf library.

A file is a `GlobalMetadata` message followed by `Node` messages, each with its length in front as a varint.
Source of the field numbers: `et_def.proto` of MLCommons Chakra, package `ChakraProtoMsg`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farstep.fabric.errors import quoted
from farstep.sim.tasks import WorkloadError

__all__ = ["CollectiveType", "Node", "NodeType", "read_nodes"]

VARINT_BYTES_MAX = 10
"""A varint holds 64 bits, seven in a byte."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class NodeType(enum.IntEnum):
    """What a node is; numbers of `NodeType` in the schema."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


class CollectiveType(enum.IntEnum):
    """Kind of a collective node; numbers of `CollectiveCommType` in the schema."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


AttributeValue = int | float | bool | str | list[int]


@dataclass(slots=True)
class Node:
    """One node of a trace.

    Attributes:
        number: its id.
        name: its name.
        kind: a `NodeType`.
        deps: ids of the nodes that must be done before, control and data dependencies together.
        duration_us: recorded duration.
        attributes: numbers, texts and lists of integers by name; others are left out.
    """

    number: int = 0
    name: str = ""
    kind: int = NodeType.INVALID
    deps: list[int] = field(default_factory=list)
    duration_us: int = 0
    attributes: dict[str, AttributeValue] = field(default_factory=dict)

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an attribute that must be a whole number.

        Raises:
            ValueError: it is missing and has no default, or is none.
        """
        value = self.attributes.get(name, default)
        if value is None:
            raise ValueError(f"node {self.number} ({quoted(self.name)}) has no attribute {name}")
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if not isinstance(value, int):
            raise ValueError(
                f"node {self.number} ({quoted(self.name)}): {name} = {quoted(value)} is no whole number"
            )
        return value


def read_nodes(path: str | Path) -> list[Node]:
    """Reads the nodes of one rank's trace in the order of the file.

    Raises:
        WorkloadError: the file cannot be read or is no such trace.
    """
    try:
        data = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    nodes: list[Node] = []
    try:
        for index, message in enumerate(_messages(data)):
            if index > 0:  # the first is the file's own description
                nodes.append(_node(message))
    except (ValueError, IndexError, UnicodeDecodeError, struct.error) as error:
        where = f"node {len(nodes)}" if nodes else "the beginning"
        raise WorkloadError(f"{path}: is no Chakra trace: {error} (at {where})") from error
    if not nodes:
        raise WorkloadError(f"{path}: is no Chakra trace: it has no node")
    return nodes


def _messages(data: memoryview) -> Iterator[memoryview]:
    position = 0
    while position < len(data):
        length, position = _varint(data, position)
        if position + length > len(data):
            raise ValueError("it ends in the middle of a message")
        yield data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index in range(VARINT_BYTES_MAX):
        if position >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position
    raise ValueError("a number is longer than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yields (field number, wire type, value); the value of what has a length is its bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not known")
        if number == 0 or position + length > len(data):
            raise ValueError("a field is longer than its message")
        yield number, wire, data[position : position + length]
        position += length


def _node(data: memoryview) -> Node:
    node = Node()
    for number, _, value in _fields(data):
        if number == 1:
            node.number = _int(value)
        elif number == 2:
            node.name = _text(value)
        elif number == 3:
            node.kind = _int(value)
        elif number in (4, 5):
            node.deps += _repeated(value)
        elif number == 7:
            node.duration_us = _int(value)
        elif number == 10:
            name, attribute = _attribute(_bytes(value))
            if attribute is not None:
                node.attributes[name] = attribute
    return node


_SIGNED = frozenset((7, 9))
_PLAIN = frozenset((11, 13))
_ZIGZAG = frozenset((15, 17))
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_INT_LISTS = frozenset((8, 10, 12, 14))


def _attribute(data: memoryview) -> tuple[str, AttributeValue | None]:
    """Reads an `AttributeProto`; the field numbers of its `value` choose the type."""
    name = ""
    found: AttributeValue | None = None
    for number, _, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number in _SIGNED:
            found = _signed(_int(value))
        elif number in _PLAIN:
            found = _int(value)
        elif number in _ZIGZAG:
            raw = _int(value)
            found = (raw >> 1) ^ -(raw & 1)
        elif number == 27:
            found = bool(_int(value))
        elif number == 29:
            found = _text(value)
        elif number in _FIXED:
            found = struct.unpack(_FIXED[number], _bytes(value))[0]
        elif number in _INT_LISTS:
            found = [_signed(item) for part in _fields(_bytes(value)) for item in _repeated(part[2])]
    return name, found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _repeated(value: int | memoryview) -> list[int]:
    """One value, or several packed into bytes."""
    if isinstance(value, int):
        return [value]
    values = []
    position = 0
    while position < len(value):
        item, position = _varint(value, position)
        values.append(item)
    return values


def _int(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is written as bytes")
    return value


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("bytes are written as a number")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode()
