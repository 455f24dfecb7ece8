"""Traffic matrices of htsim, read as they are.

A file has the lines `Nodes N`, `Connections N` and `Triggers N`, then a flow per line, such as
`3->7 id 12 trigger 4 size 100000 send_done_trigger 5`, or `... start PS ...` with the start in picoseconds, and
lines `trigger id 5 oneshot` (or `barrier COUNT`). A trigger starts its flows when the flow that names it is done;
a barrier, when as many as its count are.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.errors import quoted
from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.workloads.ranks import to_nics

__all__ = ["read_matrix"]

PS_PER_NS = 1000

_FLOW_KEYS = {"id", "start", "trigger", "size", "send_done_trigger", "recv_done_trigger", "prio"}


@dataclass(slots=True)
class _Matrix:
    """Columns of a file as they are collected."""

    declared: dict[str, int] = field(default_factory=dict)
    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    start_ps: list[int] = field(default_factory=list)
    started_by: list[int] = field(default_factory=list)
    fires: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of flow and trigger."""
    barriers: dict[int, int] = field(default_factory=dict)
    """Count of each trigger that is a barrier."""
    triggers: set[int] = field(default_factory=set)


def read_matrix(path: str | Path, ranks: int | ArrayLike | None = None) -> TaskTable:
    """Reads a `.cm` file, or one compressed to `.cm.xz`.

    Every flow has a connection of its own, as in htsim; "done" is what the simulation calls done.

    Args:
        path: the file.
        ranks: NIC of each of the file's nodes; by default node i is NIC i.

    Raises:
        WorkloadError: the file cannot be read, or a line of it; the message names file, line and what is wrong.
    """
    path = Path(path)
    matrix = _Matrix()
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    _read_line(matrix, line.split())
                except ValueError as error:
                    raise WorkloadError(f"{path}:{number}: {error}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: is no traffic matrix: it is not plain text") from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise WorkloadError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _table(matrix, path.name.partition(".")[0], ranks)
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="ascii")
    return path.open(encoding="ascii")


def _read_line(matrix: _Matrix, words: list[str]) -> None:
    if not words or words[0].startswith("#"):
        return
    if words[0] in ("Nodes", "Connections", "Triggers") and len(words) == 2:
        matrix.declared[words[0]] = _number(words[0], words[1])
    elif words[0] == "trigger" and len(words) >= 4 and words[1] == "id":
        _read_trigger(matrix, words)
    elif "->" in words[0]:
        _read_flow(matrix, words)
    else:
        raise ValueError(
            f"{quoted(' '.join(words)[:60])} is not known; a flow reads: 3->7 id 12 start 0 size 100000"
        )


def _read_flow(matrix: _Matrix, words: list[str]) -> None:
    source, _, target = words[0].partition("->")
    values: dict[str, int] = {}
    for key, value in zip(words[1::2], words[2::2], strict=False):
        if key not in _FLOW_KEYS:
            raise ValueError(f"{quoted(key)} is not known; valid: {', '.join(sorted(_FLOW_KEYS))}")
        values[key] = _number(key, value)
    if len(words) % 2 == 0:
        raise ValueError(f"{quoted(words[-1])} has no value")
    if "size" not in values or ("start" in values) == ("trigger" in values):
        raise ValueError("a flow needs a size, and a start or a trigger")
    flow = len(matrix.source)
    matrix.source.append(_number("source", source))
    matrix.target.append(_number("target", target))
    matrix.size.append(values["size"])
    matrix.start_ps.append(values.get("start", 0))
    matrix.started_by.append(values.get("trigger", -1))
    for key in ("send_done_trigger", "recv_done_trigger"):
        if key in values:
            matrix.fires.append((flow, values[key]))


def _read_trigger(matrix: _Matrix, words: list[str]) -> None:
    number = _number("trigger id", words[2])
    if number in matrix.triggers:
        raise ValueError(f"trigger {number} is there twice")
    matrix.triggers.add(number)
    if words[3] == "barrier" and len(words) == 5:
        matrix.barriers[number] = _number("barrier", words[4])
    elif words[3:] != ["oneshot"]:
        raise ValueError(
            f"trigger kind {quoted(' '.join(words[3:]))} is not known; valid: oneshot, barrier COUNT"
        )


def _number(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{key} = {quoted(text)}: must be a whole number")
    return int(text)


def _table(matrix: _Matrix, name: str, ranks: int | ArrayLike | None) -> TaskTable:
    for what, found in (("Connections", len(matrix.source)), ("Triggers", len(matrix.triggers))):
        declared = matrix.declared.get(what, found)
        if declared != found:
            raise WorkloadError(f"says {what} {declared}, and lists {found}")
    nodes = matrix.declared.get("Nodes", max([*matrix.source, *matrix.target], default=-1) + 1)
    nics = to_nics(nodes if ranks is None else ranks, at_least=1)
    if len(nics) < nodes:
        raise WorkloadError(f"has {nodes} nodes; {len(nics)} NICs are given")
    source, target = np.array(matrix.source, np.int64), np.array(matrix.target, np.int64)
    if len(source) and max(source.max(), target.max()) >= nodes:
        raise WorkloadError(f"node {max(source.max(), target.max())} is used, of {nodes} nodes")
    build = TaskBuilder(job_names=[name])
    ids = build.flows(
        nics[source],
        nics[target],
        matrix.size,
        start_ns=(np.array(matrix.start_ps, np.int64) + PS_PER_NS // 2) // PS_PER_NS,
        connection_key=np.arange(len(source)),
        phase="flow",
    )
    _connect(build, matrix, ids)
    return build.table()


def _connect(build: TaskBuilder, matrix: _Matrix, ids: NDArray[np.int64]) -> None:
    firing: dict[int, list[int]] = {}
    for flow, trigger in matrix.fires:
        firing.setdefault(trigger, []).append(flow)
    for trigger, flows in firing.items():
        needed = matrix.barriers.get(trigger, 1)
        if trigger not in matrix.triggers:
            raise WorkloadError(f"trigger {trigger} is fired by a flow, and not listed")
        if len(flows) != needed:
            raise WorkloadError(
                f"trigger {trigger} is fired by {len(flows)} flows; its kind asks for {needed}"
            )
    later: list[int] = []
    earlier: list[int] = []
    for flow, trigger in enumerate(matrix.started_by):
        if trigger < 0:
            continue
        if trigger not in firing:
            raise WorkloadError(f"flow {flow + 1} waits for trigger {trigger}, which no flow fires")
        later += [flow] * len(firing[trigger])
        earlier += firing[trigger]
    build.after(ids[np.array(later, np.int64)], ids[np.array(earlier, np.int64)])
