"""Sweeps: one scenario at many points, each finished point a file, so that a sweep broken off goes on where it was."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from farstep import __version__
from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect, expect_list, expect_path, expect_whole
from farstep.sim.extras import extra
from farstep.sim.scenario import Scenario
from farstep.sim.toml_text import parse_value

__all__ = [
    "Group",
    "Point",
    "Sweep",
    "SweepRow",
    "grouped",
    "parse_seeds",
    "parse_settings",
    "run_sweep",
    "write_rows",
]

RAY_QUEUE_MIN = 16
"""Points handed to a Ray cluster at once, at least; more where it has more processors."""

PROCESSES_MAX = 1_024
"""More at once than this are a slip."""

SEED_MAX = 2**53 - 1
"""The largest `run.seed`."""

PROCESS_ENDED = "its process was ended from outside, twice; for want of memory? fewer at once (-j) need less"
"""Why a point failed that took its process with it."""

POINTS_MAX = 1_000_000
"""More points than this are a slip; each is at least a file."""

HASH_CHARACTERS = 16
"""Of 64 bits: a million points meet by chance once in 37 million sweeps."""


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation of a sweep.

    Attributes:
        values: value of every knob that is swept, by dotted key.
        seed: seed of the run.
        scenario: the whole scenario as a table.
        digest: names the file of the finished point; equal for equal scenarios.
    """

    values: Mapping[str, Any]
    seed: int
    scenario: Mapping[str, Any]
    digest: str


SweepRow = dict[str, Any]
"""One finished point: swept values, `seed`, `status`, `error` and the metrics of the result."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A scenario, the values its knobs take, and the seeds each combination is run with.

    Attributes:
        scenario: what stays the same.
        settings: values by dotted key, such as `{"transport.evs": [16, 64]}`; all combinations are run.
        seeds: one run for each; empty: the seed of the scenario.
    """

    scenario: Scenario
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seeds: Sequence[int] = ()

    def points(self) -> list[Point]:
        """All points, in order.

        Raises:
            ConfigError: a key or value cannot be used, told before anything is run; or there are too many.
        """
        expect("scenario", self.scenario, Scenario, "a Scenario")
        expect("settings", self.settings, Mapping, 'a table, such as {"transport.evs": [16, 64]}')
        seeds = expect_list("seeds", self.seeds, "numbers") or [self.scenario.run.seed]
        for seed in seeds:
            expect_whole("seeds", seed, 0, SEED_MAX)
        count = len(seeds)
        if "run.seed" in self.settings:
            raise ConfigError("run.seed: a sweep takes seeds apart from settings (--seeds)")
        for key, choices in self.settings.items():
            if not expect_list(key, choices, "values"):
                raise ConfigError(f"{key}: no value is given")
            count *= len(choices)
        if count > POINTS_MAX:
            raise ConfigError(f"the sweep has {count} points; at most {POINTS_MAX}")
        found = []
        for combination in itertools.product(*self.settings.values()):
            values: dict[str, Any] = dict(zip(self.settings, combination, strict=True))
            changed = self.scenario.with_overrides(values) if values else self.scenario
            table = changed.table()
            for seed in seeds:
                seeded = {**table, "run": {**table["run"], "seed": seed}}
                found.append(Point(values, seed, seeded, _digest(seeded)))
        return found


def _digest(table: Mapping[str, Any]) -> str:
    import xxhash

    text = json.dumps({"scenario": table, "version": __version__}, sort_keys=True)
    return xxhash.xxh3_64_hexdigest(text.encode())[:HASH_CHARACTERS]


def parse_settings(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Reads `KEY=VALUE,VALUE,...` as the command line has it.

    Raises:
        ConfigError: one cannot be read, or a key is given twice.
    """
    settings: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key or not values:
            raise ConfigError(f"--set {quoted(text)}: write KEY=VALUE,VALUE, such as transport.evs=16,64,256")
        if key in settings:
            raise ConfigError(f"--set {key}: is given twice")
        settings[key] = [parse_value(value) for value in _split(values)]
    return settings


def _split(text: str) -> list[str]:
    """Cuts at commas outside of brackets and quotes."""
    parts, depth, quote, since = [], 0, "", 0
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[since:index].strip())
            since = index + 1
    return [*parts, text[since:].strip()]


def parse_seeds(text: str) -> list[int]:
    """Reads seeds: `5`, `1,2,7` or `0:20` (20 is not among them).

    Raises:
        ConfigError: it cannot be read, or there are none.
    """
    wrong = ConfigError(f"--seeds {quoted(text)}: write numbers, such as 1,2,3, or a range, such as 0:20")
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, last = part.strip().partition(":")
        if not first.isdigit() or (colon and not last.isdigit()) or len(first) > 15 or len(last) > 15:
            raise wrong
        low, high = int(first), int(last) if colon else int(first) + 1
        if high - low > POINTS_MAX:
            raise ConfigError(f"--seeds {quoted(text)}: at most {POINTS_MAX} seeds")
        seeds += range(low, high)
    if not seeds:
        raise wrong
    return seeds


OnPoint = Callable[[int, int, SweepRow], None]
"""Is told: points done, all points, the row just finished."""


def run_sweep(
    sweep: Sweep,
    folder: str | Path,
    *,
    processes: int = 1,
    use_ray: bool = False,
    on_point: OnPoint | None = None,
) -> list[SweepRow]:
    """Runs what is not finished yet, and returns the rows of all points in order.

    A point that fails has its reason in its row and does not end the sweep; it is run again the next time.

    Args:
        sweep: what to run.
        folder: takes a file per finished point, in `points/`.
        processes: simulations at once on this machine.
        use_ray: hands the simulations to a Ray cluster instead.
        on_point: is told of every point.

    Raises:
        ConfigError: the sweep cannot be run as given.
        ModuleNotFoundError: Ray is asked for and not installed.
    """
    expect("sweep", sweep, Sweep, "a Sweep")
    expect_path("folder", folder)
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= PROCESSES_MAX:
        raise ConfigError(f"-j {processes}: at least 1 process is needed, at most {PROCESSES_MAX}")
    points = sweep.points()
    store = Path(folder) / "points"
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{store}: no folder can be made there: {error.strerror or error}") from error
    rows: list[SweepRow | None] = [_stored(store, point) for point in points]
    open_points = [index for index, row in enumerate(rows) if row is None]
    done = len(points) - len(open_points)
    if on_point is not None and done:
        on_point(done, len(points), {})
    source, base = sweep.scenario.source, str(sweep.scenario.folder.resolve())
    work = [(index, points[index], source, base) for index in open_points]
    runner = _through_ray(work) if use_ray else _through_processes(work, min(processes, len(work)))
    for index, row in runner:
        if row["status"] == "done":
            _store(store, points[index], row)
        rows[index] = row
        done += 1
        if on_point is not None:
            on_point(done, len(points), row)
    return [row for row in rows if row is not None]


def _stored(store: Path, point: Point) -> SweepRow | None:
    try:
        row = json.loads((store / f"{point.digest}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or not whole: run it
        return None
    if not isinstance(row, dict) or row.get("status") != "done":
        return None
    return {**_labels(point), **{key: value for key, value in row.items() if key not in point.values}}


def _store(store: Path, point: Point, row: SweepRow) -> None:
    """Writes a row at once or not at all, so that whoever reads the file has a whole one."""
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=store, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(row, file)
        Path(name).replace(store / f"{point.digest}.json")
    except OSError as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise ConfigError(f"{store}: cannot be written: {error.strerror or error}") from error


def _labels(point: Point) -> SweepRow:
    return {**point.values, "seed": point.seed}


_previous: list[Scenario] = []
"""The scenario this process ran last: points mostly differ in other things than the fabric."""


def _run_point(work: tuple[int, Point, str, str]) -> tuple[int, SweepRow]:
    """Runs one point; a fabric that the last one had, too, is not built again."""
    from farstep.sim.run import SimulationStalled, run_scenario
    from farstep.sim.scenario import parse_scenario

    index, point, source, folder = work
    row = _labels(point)
    try:
        scenario = parse_scenario(point.scenario, source=source, folder=Path(folder))
        if _previous:
            scenario.share_topology(_previous.pop())
        result = run_scenario(scenario)
    except (ConfigError, SimulationStalled) as error:
        return index, {**row, "status": "failed", "error": str(error).splitlines()[0]}
    _previous.append(scenario)
    return index, {
        **row,
        "status": "done",
        "error": "",
        "level": result.meta["level"],
        "transport": result.meta["transport"],
        **result.metrics(),
        "wall_s": result.meta["wall_s"],
    }


WorkItem = tuple[int, Point, str, str]
Work = list[WorkItem]


def _through_processes(work: Work, processes: int) -> Iterator[tuple[int, SweepRow]]:
    if processes <= 1:
        try:
            yield from map(_run_point, work)
        finally:
            _previous.clear()
        return
    queue = iter(work)
    suspects: Work = []
    while True:
        for item in suspects:  # one of them ended its process: alone, it does no harm to the others
            yield from _alone(item)
        suspects = []
        with _pool(work, processes) as pool:
            running: dict[Future[tuple[int, SweepRow]], WorkItem] = {}
            try:
                while True:
                    for item in itertools.islice(queue, 2 * processes - len(running)):
                        suspects = [item]  # until it is under way: a pool that broke takes nothing
                        running[pool.submit(_run_point, item)] = item
                        suspects = []
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        found = future.result()
                        del running[future]
                        yield found
            except BrokenProcessPool:
                suspects += running.values()
            finally:
                _end(pool, at_once=bool(running))


def _alone(item: WorkItem) -> Iterator[tuple[int, SweepRow]]:
    """Runs a point in a process that nothing else depends on."""
    with _pool([item], 1) as pool:
        found: tuple[int, SweepRow] | None = None
        try:
            found = pool.submit(_run_point, item).result()
        except BrokenProcessPool:
            found = item[0], {**_labels(item[1]), "status": "failed", "error": PROCESS_ENDED}
        finally:
            _end(pool, at_once=found is None)
    yield found


def _end(pool: ProcessPoolExecutor, *, at_once: bool) -> None:
    """Takes no more work, and where `at_once`, as after Ctrl-C, nobody waits for points that are under way."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes if at_once else ():
        process.terminate()


def _pool(work: Work, processes: int) -> ProcessPoolExecutor:
    """Starts processes: as copies of this one with the first fabric built, if it can be copied, else from nothing.

    A copy shares what is loaded and built, and starts at once; half a second of imports each is saved. Threads are not
    copied, and what they hold stays held: so a process that has some, or a library that starts its own, is not copied.
    """
    can_copy = sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules
    if not can_copy:
        return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        _warm_up(work[0])
        pool = ProcessPoolExecutor(processes, mp_context=get_context("fork"))
        with warnings.catch_warnings():
            # Python 3.12 counts numpy's threads, too, which are made anew in a copy.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(os.getpid)  # all are started with the first work
        return pool
    finally:
        _previous.clear()


def _warm_up(work: tuple[int, Point, str, str]) -> None:
    """Loads what a point needs, and builds its fabric with its routes."""
    from farstep.sim.scenario import parse_scenario

    _, point, source, folder = work
    with contextlib.suppress(ConfigError):  # told by the point itself
        scenario = parse_scenario(point.scenario, source=source, folder=Path(folder))
        engine = ("flow",) if scenario.run.level == "flow" else ("packet", "packet_knobs")
        for module in ("run", "summary", *engine):
            import_module(f"farstep.sim.{module}")
        scenario.topology.routes()
        _previous.append(scenario)


def _through_ray(work: Work) -> Iterator[tuple[int, SweepRow]]:
    ray = extra("ray")
    is_ours = not ray.is_initialized()
    if is_ours:  # joins the cluster of RAY_ADDRESS; without one, this machine is the cluster
        ray.init(log_to_driver=False, logging_level="ERROR")
    run = ray.remote(_run_point)
    queue = iter(work)
    running: list[Any] = []
    try:
        while True:
            room = max(RAY_QUEUE_MIN, 2 * int(ray.cluster_resources().get("CPU", 1))) - len(running)
            running += [run.remote(item) for item in itertools.islice(queue, room)]
            if not running:
                return
            finished, running = ray.wait(running)
            for reference in finished:
                yield ray.get(reference)
    finally:
        for reference in running:
            ray.cancel(reference)
        if is_ours:
            ray.shutdown()


def check_path(path: str | Path) -> None:
    """Refuses a file whose ending names no format.

    Raises:
        ConfigError: naming the endings that do.
    """
    if Path(path).suffix not in (".parquet", ".csv", ".json"):
        raise ConfigError(f"{path}: valid endings: .parquet, .csv, .json")


def write_rows(rows: Sequence[SweepRow], path: str | Path) -> Path:
    """Writes all rows into one file; its ending chooses the format: `.parquet`, `.csv` or `.json`.

    Raises:
        ConfigError: the ending is none of these, or the file cannot be written.
    """
    check_path(path)
    path = Path(path)
    names = list(dict.fromkeys(key for row in rows for key in row))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            path.write_text(json.dumps(list(rows), indent=1), encoding="utf-8")
        elif path.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, names, restval="")
                writer.writeheader()
                writer.writerows(rows)
        else:
            pyarrow, parquet = extra("pyarrow"), extra("pyarrow.parquet")
            columns = {name: [_plain(row.get(name)) for row in rows] for name in names}
            parquet.write_table(pyarrow.table(columns), path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def _plain(value: Any) -> Any:
    """A value a column can hold: lists and tables become text."""
    return json.dumps(value) if isinstance(value, list | dict) else value


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that differ in their seed alone.

    Attributes:
        values: of the swept keys.
        rows: those that are done.
    """

    values: tuple[Any, ...]
    rows: Sequence[SweepRow]

    @property
    def seeds(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def _numbers(self, name: str) -> list[float]:
        return sorted(row[name] for row in self.rows if isinstance(row.get(name), int | float))

    def median(self, name: str) -> float | None:
        """Median of a metric over the seeds; None if no row has it."""
        numbers = self._numbers(name)
        return None if not numbers else statistics.median(numbers)

    def highest(self, name: str) -> float | None:
        """Highest value of a metric over the seeds; None if no row has it."""
        numbers = self._numbers(name)
        return numbers[-1] if numbers else None


def grouped(rows: Sequence[SweepRow], keys: Sequence[str]) -> list[Group]:
    """Puts rows together that differ in their seed alone, in the order of the sweep."""
    found: dict[str, tuple[tuple[Any, ...], list[SweepRow]]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        entry = found.setdefault(json.dumps(values, default=str), (values, []))
        if row["status"] == "done":
            entry[1].append(row)
    return [Group(values, listed) for values, listed in found.values()]
