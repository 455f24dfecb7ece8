"""A scenario: fabric, transport, jobs, faults and run, as a TOML file says it.

What is valid is told by the models; every mistake ends as one line that names file, key, value and what is valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from farstep.fabric.errors import ConfigError, called, names, quoted, read_toml
from farstep.fabric.expected import expect, expect_path
from farstep.fabric.topology import Topology
from farstep.fabric.topology.build import TOPOLOGY_KINDS, build_topology
from farstep.sim.faults import LinkAction, ScriptedFault, link_actions, parse_faults
from farstep.sim.refusals import PlainModel, plain_validation_error
from farstep.sim.tasks import TaskTable, WorkloadError, concatenate
from farstep.sim.toml_text import plain_table, section
from farstep.sim.trace import TRACE_FLOWS_MAX
from farstep.sim.transports import Level, Switch, Transport
from farstep.sim.workloads.jobs import Placer
from farstep.sim.workloads.tables import WORKLOAD_KINDS, Workload

__all__ = [
    "Fabric",
    "Run",
    "Scenario",
    "default_scenario",
    "dump_toml",
    "load_scenario",
    "parse_scenario",
    "place_jobs",
    "rack_of_nics",
]

NS_PER_US = 1000


class Fabric(PlainModel):
    """The network: its kind and the arguments of the builder."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    kind: str

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, table: Any) -> Any:
        return table  # the builder knows its keys, and says so

    @property
    def parameters(self) -> dict[str, Any]:
        """Arguments of the builder."""
        return dict(self.model_extra or {})


class Run(PlainModel):
    """How the simulation is carried out."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    seed: Annotated[int, Field(ge=0, lt=2**53)] = 1
    """draws everything left to chance; the same seed gives the same result"""
    level: Level = "packet"
    """packet, or flow for large fabrics in little time"""
    until_us: Annotated[float, Field(gt=0.0, le=3.2e13)] | None = None
    """end of the simulation, whatever is unfinished then; left out: when all is done"""
    until_s: Annotated[float, Field(gt=0.0, le=3.2e7)] | None = None
    """the same in seconds"""
    sample_interval_us: Annotated[float, Field(gt=0.0, le=1e12)] | None = None
    """time between samples of the series; left out: no series"""
    completion: Annotated[str, Field(pattern="^(receiver|sender)$")] = "receiver"
    """a flow is done when its last byte is at the receiver, or when the sender knows"""
    repeat: Annotated[int, Field(ge=1, le=10**6)] = 1
    """steps of every job that does not say so itself"""
    max_wall_s: Annotated[float, Field(gt=0.0, le=1e7)] | None = None
    """gives up after so much real time"""
    trace_flows: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(max_length=TRACE_FLOWS_MAX)
    ] = ()
    """flows, by their number, whose packets are recorded one by one (packet level)"""

    @model_validator(mode="after")
    def _ends_once(self) -> Self:
        if self.until_us is not None and self.until_s is not None:
            raise ValueError("give until_us or until_s, not both")
        return self

    @property
    def until_ns(self) -> int | None:
        """End of the simulation."""
        if self.until_s is not None:
            return round(self.until_s * 1e9)
        return None if self.until_us is None else round(self.until_us * NS_PER_US)

    @property
    def sample_interval_ns(self) -> int:
        """Time between samples; 0 for none."""
        return 0 if self.sample_interval_us is None else max(1, round(self.sample_interval_us * NS_PER_US))


class Scenario(PlainModel):
    """Everything a simulation needs."""

    fabric: Fabric
    transport: Transport = Transport()
    switch: Switch = Switch()
    workload: tuple[Workload, ...] = Field(min_length=1)
    faults: tuple[ScriptedFault, ...] = ()
    run: Run = Run()

    _source: str = PrivateAttr(default="scenario")
    _folder: Path = PrivateAttr(default=Path())

    @property
    def source(self) -> str:
        """Name of the file, for messages."""
        return self._source

    @property
    def folder(self) -> Path:
        """Where files the scenario names are looked for."""
        return self._folder

    @field_validator("workload", mode="before")
    @classmethod
    def _one_workload_or_several(cls, value: Any) -> Any:
        tables = [value] if isinstance(value, Mapping) else value
        for index, table in enumerate(tables if isinstance(tables, list | tuple) else ()):
            if not isinstance(table, Mapping):
                continue
            kind = table.get("kind")
            if kind not in WORKLOAD_KINDS:
                at = f"[{index}]" if len(tables) > 1 else ""
                what = "is required" if kind is None else f"= {quoted(kind)} is not known"
                raise ValueError(f"kind{at} {what}; valid: {names(WORKLOAD_KINDS)}")
        return tables

    @cached_property
    def topology(self) -> Topology:
        """The network, built once.

        Raises:
            ConfigError: it cannot be built; the message names key, value and what is valid.
        """
        parameters = self.fabric.parameters
        if self.fabric.kind == "file" and isinstance(parameters.get("path"), str):
            parameters["path"] = str(self._folder / parameters["path"])
        try:
            return build_topology(self.fabric.kind, **parameters)
        except ConfigError as error:
            joint = ": " if self.fabric.kind == "file" else "."  # the mistake is in a file of its own
            raise ConfigError(f"{self._source}: fabric{joint}{error}") from error
        except TypeError as error:  # a value of a type the builder cannot even compare
            raise ConfigError(f"{self._source}: fabric: {error}") from error

    def share_topology(self, other: Scenario) -> None:
        """Takes over the network of another scenario, with its routes, if both describe the same."""
        if self.fabric == other.fabric and self._folder == other._folder:
            self.__dict__["topology"] = other.topology

    def tasks(self) -> TaskTable:
        """The tasks of all jobs, each on NICs of its own.

        Raises:
            ConfigError: a job does not fit on the fabric.
        """
        tables = []
        placed = place_jobs(self.workload, self.topology, self.run.seed, self._folder, source=self._source)
        for index, (job, nics) in enumerate(zip(self.workload, placed, strict=True)):
            seed = self.run.seed + 1_000_003 * index  # jobs of one kind draw differently
            try:
                tables.append(
                    job.tasks(nics, seed=seed, folder=self._folder, repeat=self.run.repeat).validate(
                        self.topology.num_nics
                    )
                )
            except WorkloadError as error:
                raise ConfigError(f"{self._source}: {_job_key(index, len(placed))}: {error}") from error
        return concatenate(tables) if len(tables) > 1 else tables[0]

    def actions(self) -> list[LinkAction]:
        """What the fault script does to links.

        Raises:
            ConfigError: it names nothing of the fabric.
        """
        return link_actions(
            self.faults, self.topology, seed=self.run.seed, until_ns=self.run.until_ns, source=self._source
        )

    def table(self) -> dict[str, Any]:
        """The scenario as TOML would give it."""
        table = self.model_dump(mode="json", exclude_none=True, exclude={"faults"})
        faults = [dict(entry.table) for entry in self.faults]
        return {**table, "faults": faults} if faults else table

    def with_overrides(self, overrides: Mapping[str, Any]) -> Scenario:
        """The scenario with some keys changed, such as `{"transport.evs": 16}`.

        Raises:
            ConfigError: there is no such key, or its value cannot be used.
        """
        return parse_scenario(self.table(), source=self._source, folder=self._folder, overrides=overrides)


def _job_key(index: int, count: int) -> str:
    return f"workload[{index}]" if count > 1 else "workload"


def _prefix(source: str) -> str:
    return f"{source}: " if source else ""


def place_jobs(
    jobs: tuple[Workload, ...], topology: Topology, seed: int, folder: Path, *, source: str
) -> list[Any]:
    """Gives every job its NICs: first those that name them, then those of a given size, then who takes the rest.

    Raises:
        ConfigError: they do not fit.
    """
    placer = Placer(rack_of_nics(topology))
    placed: list[Any] = [None] * len(jobs)

    def order(index: int) -> tuple[bool, bool]:
        job = jobs[index]
        return isinstance(job.placement, str), job.num_ranks(placer.num_free, folder) is None

    try:
        ordered = sorted(range(len(jobs)), key=order)
    except WorkloadError as error:
        raise ConfigError(f"{_prefix(source)}workload: {error}") from error
    for index in ordered:
        job = jobs[index]
        try:
            count = job.num_ranks(placer.num_free, folder)
            placed[index] = placer.place(count, job.placement, seed=seed + index)
        except WorkloadError as error:
            raise ConfigError(f"{_prefix(source)}{_job_key(index, len(jobs))}: {error}") from error
    return placed


def rack_of_nics(topology: Topology) -> Any:
    """Rack of every NIC: the switch at the other end of its first port, int (nics,)."""
    ports = topology.ports
    return ports.switch[ports.offset[:-1]]


def parse_scenario(
    table: Mapping[str, Any],
    *,
    source: str = "scenario",
    folder: Path = Path(),
    overrides: Mapping[str, Any] | None = None,
) -> Scenario:
    """Turns a TOML table into a `Scenario`.

    Args:
        table: what a TOML file holds.
        source: name of the file, for messages.
        folder: where files it names are looked for.
        overrides: dotted key to value, such as `transport.evs`, `fabric.nics` or `workload[1].size_bytes`.

    Raises:
        ConfigError: one line that names source, key, value and what is valid.
    """
    expect("scenario", table, Mapping, "a table, as a TOML file holds it")
    merged = _merged(table, overrides or {})
    faults = merged.pop("faults", ())
    if not isinstance(faults, list | tuple) or not all(isinstance(fault, Mapping) for fault in faults):
        raise ConfigError(f"{source}: faults: must be an array of tables, written as [[faults]]")
    kind = merged.get("fabric", {}).get("kind") if isinstance(merged.get("fabric"), Mapping) else None
    if kind is not None and kind not in TOPOLOGY_KINDS:
        raise ConfigError(
            f"{source}: fabric.kind = {quoted(kind)}: no such network; valid: {names(TOPOLOGY_KINDS)}"
        )
    try:
        script = parse_faults(faults, source=source)
        scenario = Scenario.model_validate({**merged, "faults": script})
    except ValidationError as error:
        raise ConfigError(plain_validation_error(error, source)) from error
    except ConfigError as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    scenario._source, scenario._folder = source, folder
    return scenario


_PART = re.compile(r"([A-Za-z0-9_-]+)((?:\[\d+\])*)\Z")


def _merged(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The table with overrides; parts that are changed are copied."""
    expect("overrides", overrides, Mapping, 'a table, such as {"transport.evs": 16}')
    merged: dict[str, Any] = dict(table)
    for dotted, value in overrides.items():
        expect("overrides", dotted, str, "named by keys such as transport.evs")
        parts: list[str | int] = []
        for part in dotted.split("."):
            match = _PART.match(part)
            if match is None:
                parts = []
                break
            parts.append(int(part) if part.isdigit() else match[1])
            parts += [int(number) for number in re.findall(r"\d+", match[2])]
        if len(parts) < 2 or parts[0] not in Scenario.model_fields:
            raise ConfigError(
                f"{dotted}: is no key of a scenario; write SECTION.KEY, such as transport.evs;"
                f" sections: {names(Scenario.model_fields)}"
            )
        merged = _with(merged, parts, value, dotted)
    return merged


def _with(node: Any, parts: list[str | int], value: Any, dotted: str) -> Any:
    """A table or array with one value deep inside changed."""
    head, rest = parts[0], parts[1:]
    if isinstance(node, list | tuple):
        if isinstance(head, str):  # the only entry of an array needs no number
            head, rest = (0, parts) if len(node) == 1 else (-1, parts)
        if not 0 <= head < len(node):
            key = ".".join(str(part) for part in rest)
            raise ConfigError(
                f"{dotted}: there are {len(node)} such tables; write the number, as in [0].{key}"
            )
        changed = _with(node[head], rest, value, dotted) if rest else value
        return [*node[:head], changed, *node[head + 1 :]]
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(f"{dotted}: there is no table to change")
    if isinstance(head, int):
        if head or node is None:
            raise ConfigError(f"{dotted}: there is no table number {head}")
        return _with(node, rest, value, dotted)  # [workload] instead of [[workload]]
    table = dict(node or {})
    table[head] = _with(table.get(head), rest, value, dotted) if rest else value
    return table


def load_scenario(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Reads a scenario, or returns the built-in one when there is no file.

    Args:
        path: a TOML file, or None.
        overrides: dotted key to value; they win over the file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or holds something unusable.
    """
    if path is not None:
        expect_path("path", path)
    if path is None:
        return default_scenario().with_overrides(overrides or {})
    return parse_scenario(read_toml(path), source=called(path), folder=Path(path).parent, overrides=overrides)


def default_scenario() -> Scenario:
    """A permutation over four planes, small enough for a second or two, with a switch that reboots on the way."""
    return parse_scenario(
        {
            "fabric": {"kind": "clos", "nics": 64, "planes": 4, "radix": 16},
            "workload": [{"kind": "permutation", "size_bytes": 4_000_000}],
            "faults": [{"kind": "switch_down", "switch": "t1/p0/0", "at_us": 40, "duration_us": 300}],
            "run": {"sample_interval_us": 5.0},
        },
        source="built-in scenario",
    )


def dump_toml(scenario: Scenario) -> str:
    """Returns the scenario as TOML that `parse_scenario` reads back to an equal one."""
    expect("scenario", scenario, Scenario, "a Scenario")
    lines = [
        "# A scenario of farstep simulate. Every key but the kinds is optional: what is left out keeps what",
        "# is shown here, or is derived from the fabric. Units are part of the names.",
    ]
    for name in ("fabric", "transport", "switch", "run"):
        body = section(getattr(scenario, name), first=("kind", "name"))
        if body:
            lines += ["", f"[{name}]", *body]
    for job in scenario.workload:
        lines += ["", "[[workload]]", *section(job, first=("kind", "name"))]
    for entry in scenario.faults:
        lines += ["", "[[faults]]", *plain_table(entry.table)]
    return "\n".join([*lines, ""])
