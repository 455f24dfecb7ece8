"""Chakra execution traces as workloads: one trace per rank, turned into delays, flows and collectives.

* Computation, memory and storage nodes last as long as recorded, or as long as their operations take.
* The n-th send from a rank to another with a tag meets the n-th receive there; the message is one flow.
* The n-th collective of a process group is the same on all its ranks, and runs as a ring, a tree or directly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from farstep.fabric.errors import quoted
from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.workloads.chakra_format import CollectiveType, Node, NodeType, read_nodes
from farstep.sim.workloads.phases import add_collective
from farstep.sim.workloads.ranks import Nics, to_nics

__all__ = ["read_chakra", "trace_files"]

NS_PER_US = 1000
BARRIER_BYTES = 8

_COLLECTIVES = {
    CollectiveType.ALL_REDUCE: "all_reduce",
    CollectiveType.REDUCE: "reduce",
    CollectiveType.ALL_GATHER: "all_gather",
    CollectiveType.BROADCAST: "broadcast",
    CollectiveType.ALL_TO_ALL: "all_to_all",
    CollectiveType.REDUCE_SCATTER: "reduce_scatter",
    CollectiveType.REDUCE_SCATTER_BLOCK: "reduce_scatter",
    CollectiveType.BARRIER: "all_reduce",
}


def trace_files(path: str | Path) -> list[Path]:
    """Finds the trace of every rank.

    Args:
        path: a folder with files `NAME.RANK.et`, or the part of their path in front of `.RANK.et`.

    Returns:
        Files by rank, from 0 on.

    Raises:
        WorkloadError: there are none, or a rank is missing.
    """
    path = Path(path)
    try:
        folder, pattern = (path, "*.et") if path.is_dir() else (path.parent, f"{path.name}.*.et")
        files = sorted(folder.glob(pattern))
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    found: dict[int, Path] = {}
    for file in files:
        match = re.search(r"\.(\d+)\.et$", file.name)
        if match is None:
            continue
        rank = int(match[1])
        if rank in found:
            raise WorkloadError(f"{path}: rank {rank} has two traces, {found[rank].name} and {file.name}")
        found[rank] = file
    if not found:
        raise WorkloadError(
            f"{path}: no file named {path.name if not path.is_dir() else 'NAME'}.RANK.et is there"
        )
    missing = sorted(set(range(max(found) + 1)) - set(found))
    if missing:
        raise WorkloadError(f"{path}: the trace of rank {missing[0]} is missing, of {max(found) + 1} ranks")
    return [found[rank] for rank in range(len(found))]


def read_chakra(
    path: str | Path,
    ranks: ArrayLike | None = None,
    *,
    groups: str | Path | Mapping[str, Sequence[int]] | None = None,
    compute_tflops: float | None = None,
) -> TaskTable:
    """Reads the traces of all ranks.

    Args:
        path: as for `trace_files`.
        ranks: NIC of each rank; by default rank i sits on NIC i.
        groups: process groups by name, as ranks, or a JSON file of them; a collective of no group is of all ranks.
        compute_tflops: speed for computations without a recorded duration, from their `num_ops`.

    Raises:
        WorkloadError: a file cannot be read, or the traces do not fit each other.
    """
    files = trace_files(path)
    nics = to_nics(len(files) if ranks is None else ranks, at_least=1)
    if len(nics) != len(files):
        raise WorkloadError(f"{path}: has {len(files)} ranks; {len(nics)} NICs are given")
    build = TaskBuilder(job_names=["chakra"])
    traces = _Traces(build, nics, _groups(groups, len(files)), compute_tflops)
    for rank, file in enumerate(files):
        try:
            traces.add_rank(rank, read_nodes(file))
        except ValueError as error:
            raise WorkloadError(str(error) if str(file) in str(error) else f"{file}: {error}") from error
    try:
        traces.connect()
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}") from error
    return build.table()


def _groups(given: str | Path | Mapping[str, Sequence[int]] | None, count: int) -> dict[str, list[int]]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        loaded: object = given
        source = "groups"
    else:
        source = str(given)
        try:
            loaded = json.loads(Path(given).read_text(encoding="utf-8"))
        except OSError as error:
            raise WorkloadError(f"{source}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise WorkloadError(f"{source}: is not valid JSON: {error}") from error
    if not isinstance(loaded, Mapping):
        raise WorkloadError(f"{source}: must hold process groups by name, each a list of ranks")
    groups: dict[str, list[int]] = {}
    for name, members in loaded.items():
        wrong = not isinstance(members, Sequence) or isinstance(members, str) or not members
        if wrong or any(not isinstance(rank, int) or not 0 <= rank < count for rank in members):
            raise WorkloadError(f"{source}: group {name} must list ranks of 0..{count - 1}")
        groups[str(name)] = list(members)
    return groups


@dataclass(slots=True)
class _Collective:
    """The same collective on the ranks of its group: node and entering task of each."""

    nodes: dict[int, Node] = field(default_factory=dict)
    entries: dict[int, int] = field(default_factory=dict)


class _Traces:
    """Turns nodes into tasks: an entry that waits for the node's dependencies, and what tells that it is done.

    Every node has an entry (a delay); of a computation this is all. A message or a collective comes between the
    entry and an exit, a delay of 0 ns.
    """

    def __init__(
        self, build: TaskBuilder, nics: Nics, groups: Mapping[str, list[int]], compute_tflops: float | None
    ) -> None:
        self._build = build
        self._nics = nics
        self._groups = groups
        self._compute_tflops = compute_tflops
        self._sends: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        self._receives: dict[tuple[int, int, int], list[int]] = {}
        self._collectives: dict[tuple[str, int], _Collective] = {}
        self._exits: list[dict[int, int]] = []

    def add_rank(self, rank: int, nodes: Sequence[Node]) -> None:
        """Adds the tasks of one rank; ranks come in order."""
        durations = [self._duration_ns(node) for node in nodes]
        entries = self._build.delays(self._nics[rank], np.array(durations, np.int64))
        has_exit = [
            node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL) for node in nodes
        ]
        made = self._build.delays(self._nics[rank], np.zeros(sum(has_exit), np.int64), phase="join")
        exits = entries.copy()
        exits[np.flatnonzero(has_exit)] = made
        by_id = {node.number: int(task) for node, task in zip(nodes, exits, strict=True)}
        if len(by_id) != len(nodes):
            raise ValueError("two nodes have the same id")
        self._exits.append(by_id)
        later: list[int] = []
        earlier: list[int] = []
        seen: dict[str, int] = {}
        for node, entry in zip(nodes, entries, strict=True):
            for number in node.deps:
                if number not in by_id:
                    raise ValueError(
                        f"node {node.number} ({quoted(node.name)}) waits for node {number}, which is none"
                    )
                later.append(int(entry))
                earlier.append(by_id[number])
            self._note_communication(rank, node, int(entry), by_id[node.number], seen)
        self._build.after(np.array(later, np.int64), np.array(earlier, np.int64))
        joined = np.flatnonzero(has_exit)
        self._build.after(exits[joined], entries[joined])

    def _duration_ns(self, node: Node) -> int:
        if node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL, NodeType.METADATA):
            return 0  # the recorded time of communication is what is to be simulated
        if node.duration_us or self._compute_tflops is None or "num_ops" not in node.attributes:
            return node.duration_us * NS_PER_US
        return round(node.integer("num_ops") / (self._compute_tflops * 1000))

    def _note_communication(
        self, rank: int, node: Node, entry: int, leave: int, seen: dict[str, int]
    ) -> None:
        if node.kind == NodeType.COMM_SEND:
            key = (rank, self._peer(node, "comm_dst"), node.integer("comm_tag", 0))
            self._sends.setdefault(key, []).append((entry, leave, node.integer("comm_size")))
        elif node.kind == NodeType.COMM_RECV:
            key = (self._peer(node, "comm_src"), rank, node.integer("comm_tag", 0))
            self._receives.setdefault(key, []).append(leave)
        elif node.kind == NodeType.COMM_COLL:
            name = str(node.attributes.get("pg_name", ""))
            if name and name not in self._groups:
                if self._groups:
                    known = ", ".join(self._groups)
                    raise ValueError(
                        f"node {node.number}: process group {quoted(name)} is not known; known: {known}"
                    )
                name = ""
            number = seen.get(name, 0)
            seen[name] = number + 1
            node.integer("comm_type")  # told here, where the file is known
            together = self._collectives.setdefault((name, number), _Collective())
            together.nodes[rank], together.entries[rank] = node, entry

    def _peer(self, node: Node, name: str) -> int:
        peer = node.integer(name)
        if not 0 <= peer < len(self._nics):
            raise ValueError(f"node {node.number}: {name} = {peer}; ranks are 0..{len(self._nics) - 1}")
        return peer

    def connect(self) -> None:
        """Adds the flows, once all ranks are known."""
        for key in sorted(self._sends.keys() | self._receives.keys()):
            source, target, tag = key
            sends, receives = self._sends.get(key, []), self._receives.get(key, [])
            if len(sends) != len(receives):
                raise ValueError(
                    f"rank {source} sends {len(sends)} messages of tag {tag} to rank {target}, "
                    f"which receives {len(receives)}"
                )
            if source == target:
                raise ValueError(f"rank {source} sends to itself")
            columns = np.array(sends, np.int64)
            flows = self._build.flows(
                self._nics[source], self._nics[target], np.maximum(columns[:, 2], 1), phase="message"
            )
            self._build.after(flows, columns[:, 0])
            self._build.after(columns[:, 1], flows)
            self._build.after(np.array(receives, np.int64), flows)
        for (name, _), together in sorted(self._collectives.items()):
            self._add_collective(name, together)

    def _add_collective(self, name: str, together: _Collective) -> None:
        members = self._groups.get(name) or list(range(len(self._nics)))
        absent = [rank for rank in members if rank not in together.nodes]
        surplus = [rank for rank in together.nodes if rank not in members]
        first = together.nodes[min(together.nodes)]
        if absent or surplus:
            rank = (absent or surplus)[0]
            raise ValueError(
                f"collective {quoted(first.name)} of group {name or 'all ranks'}: rank {rank} "
                f"{'takes no part' if absent else 'is not of the group'}"
            )
        shapes = {(n.integer("comm_type"), n.integer("comm_size", 0)) for n in together.nodes.values()}
        if len(shapes) > 1:
            raise ValueError(
                f"collective {quoted(first.name)}: the ranks of {name or 'all'} differ on kind or size"
            )
        kind, size_bytes = shapes.pop()
        if kind not in _COLLECTIVES:
            raise ValueError(f"collective {quoted(first.name)}: comm_type {kind} is not supported")
        if kind == CollectiveType.ALL_GATHER:  # comm_size is what each rank brings
            size_bytes *= len(members)
        elif kind == CollectiveType.ALL_TO_ALL:  # comm_size counts the part a rank keeps
            size_bytes = size_bytes * (len(members) - 1) // len(members)
        done = add_collective(
            self._build,
            _COLLECTIVES[CollectiveType(kind)],
            self._nics[members],
            BARRIER_BYTES * len(members) if kind == CollectiveType.BARRIER else max(size_bytes, 1),
            after=[together.entries[rank] for rank in members],
            phase=CollectiveType(kind).name.lower(),
        )[0]
        leaves = [self._exits[rank][together.nodes[rank].number] for rank in members]
        self._build.after(np.array(leaves, np.int64), done)
