"""Results in files: one JSON file, or a folder of Parquet files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.topology.node_names import NodeNames
from farstep.sim.extras import extra
from farstep.sim.result import COUNTED, TASK_COLUMNS, LinkUse, SimResult
from farstep.sim.tasks import TaskTable

__all__ = ["FORMAT", "read", "write_json", "write_parquet"]

FORMAT = "farstep-sim-result-3"
"""Names the layout; another layout gets another number."""

Columns = dict[str, NDArray[Any]]


def _tables(result: SimResult) -> dict[str, Columns]:
    """The result as tables; columns of a table have one length, dependencies are pairs."""
    tasks = result.tasks.columns()
    offset, index = tasks.pop("dep_offset"), tasks.pop("dep_index")
    after = np.repeat(np.arange(len(result.tasks), dtype=np.int64), np.diff(offset))
    return {
        "tasks": {**{f"task_{name}": column for name, column in tasks.items()}, **_measured(result)},
        "dependencies": {"task": after, "predecessor": index},
        "links": result.links.columns(),
        "nodes": _nodes(result.links.names),
        "series": result.series,
        "ev_events": result.ev_events,
        "trace": result.trace,
    }


def _measured(result: SimResult) -> Columns:
    return {name: getattr(result, name) for name in TASK_COLUMNS}


def _nodes(names: NodeNames) -> Columns:
    return {"tier": names.tier, "plane": names.plane, "number": names.number}


def _header(result: SimResult) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "meta": result.meta,
        "counters": {name: int(value) for name, value in result.counters.items()},
        "metrics": result.metrics(),
        "node_labels": {str(node): label for node, label in result.links.names.labels.items()},
        "job_names": list(result.tasks.job_names),
        "phase_names": list(result.tasks.phase_names),
    }


def write_json(result: SimResult, path: Path) -> Path:
    """Writes a result into one JSON file."""
    tables = {
        name: {
            column: {"dtype": values.dtype.str, "values": values.tolist()} for column, values in table.items()
        }
        for name, table in _tables(result).items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**_header(result), "tables": tables}), encoding="utf-8")
    return path


def write_parquet(result: SimResult, folder: Path) -> Path:
    """Writes a result into a folder: a Parquet file per table that is not empty, and `meta.json`."""
    pyarrow, parquet = extra("pyarrow"), extra("pyarrow.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in _tables(result).items():
        if table:
            arrays = {column: _arrow_array(pyarrow, values) for column, values in table.items()}
            parquet.write_table(pyarrow.table(arrays), folder / f"{name}.parquet")
    (folder / "meta.json").write_text(json.dumps(_header(result), indent=1), encoding="utf-8")
    return folder


def _arrow_array(pyarrow: Any, values: NDArray[Any]) -> Any:
    """A column; one with several values per row becomes a list column."""
    if values.ndim == 1:
        return pyarrow.array(values)
    flat = pyarrow.array(np.ascontiguousarray(values.reshape(len(values), -1)).ravel())
    return pyarrow.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


def read(path: Path) -> SimResult:
    """Reads a result from a JSON file or a folder of Parquet files.

    Raises:
        ConfigError: there is none, or it is of another format.
    """
    header_path = path / "meta.json" if path.is_dir() else path
    try:
        header = json.loads(header_path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{header_path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{header_path}: is no result of a simulation: {error}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        raise ConfigError(f"{header_path}: format is {quoted(found)}; this version reads {quoted(FORMAT)}")
    tables = _read_parquet(path) if path.is_dir() else _read_json(header["tables"])
    return _result(header, tables)


def _read_json(tables: dict[str, Any]) -> dict[str, Columns]:
    return {
        name: {
            column: np.array(stored["values"], dtype=np.dtype(stored["dtype"]))
            for column, stored in table.items()
        }
        for name, table in tables.items()
    }


def _read_parquet(folder: Path) -> dict[str, Columns]:
    parquet = extra("pyarrow.parquet")
    tables: dict[str, Columns] = {"series": {}, "ev_events": {}, "trace": {}}
    for file in sorted(folder.glob("*.parquet")):
        table = parquet.read_table(file)
        tables[file.stem] = {name: _numpy_column(table.column(name)) for name in table.column_names}
    return tables


def _numpy_column(column: Any) -> NDArray[Any]:
    array = column.combine_chunks()
    if hasattr(array.type, "list_size"):
        flat: NDArray[Any] = array.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(-1, array.type.list_size)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def _result(header: dict[str, Any], tables: dict[str, Columns]) -> SimResult:
    stored = tables["tasks"]
    pairs = tables["dependencies"]
    count = len(stored["task_kind"])
    offset = np.concatenate(([0], np.cumsum(np.bincount(pairs["task"].astype(np.int64), minlength=count))))
    tasks = TaskTable.from_columns(
        **{name.removeprefix("task_"): column for name, column in stored.items() if name.startswith("task_")},
        dep_offset=offset,
        dep_index=pairs["predecessor"],
        job_names=header["job_names"],
        phase_names=header["phase_names"],
    )
    links: dict[str, Any] = {**dict.fromkeys(COUNTED), **tables["links"]}
    labels = {int(node): label for node, label in header["node_labels"].items()}
    return SimResult.of(
        tasks,
        {name: stored[name] for name in TASK_COLUMNS},
        LinkUse(**links, names=NodeNames(**tables["nodes"], labels=labels)),
        series=tables["series"],
        ev_events=tables["ev_events"],
        trace=tables["trace"],
        counters=header["counters"],
        meta=header["meta"],
    )
