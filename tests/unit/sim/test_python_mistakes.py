"""Mistakes in Python are told as those in files are: one line that names field, value and what is valid."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farstep import sim
from farstep.sim.scenario import Run
from farstep.sim.tasks import _DTYPES

WRONG = ["x", None, 5, 1.5, b"x", [1], {}, object(), math.nan, math.inf, -1, True, 2**70, [[1], [1, 2]]]
"""Values of all kinds; some are right in some places."""

JOBS = (
    "all_to_all",
    "chakra",
    "collective",
    "flows",
    "incast",
    "matrix",
    "permutation",
    "sendrecv",
    "training",
)

SHAPE = {"leaves": 2, "spines": 2, "nics_per_leaf": 4}


@pytest.fixture(scope="module")
def fabric():
    return sim.fabric("leaf-spine", **SHAPE)


def attempt(call: Callable[[], Any], what: str) -> None:
    """Calls it; whatever is wrong must be told as a mistake of the caller, in one line."""
    try:
        call()
    except sim.ConfigError as error:
        text = str(error)
        assert text, what
        assert "\n" not in text, what
        assert "0x" not in text or "object at" in text, what
    except sim.SimulationStalled:
        pass


@pytest.mark.parametrize("key", [*SHAPE, "planes", "rate_gbps", "link_latency_ns", "bogus"])
def test_arguments_of_a_fabric(key):
    for value in WRONG:
        if value != 2**70:
            attempt(lambda value=value: sim.fabric("leaf-spine", **{**SHAPE, key: value}), f"{key}={value!r}")
        attempt(lambda value=value: sim.fabric(value), f"{value!r}")


@pytest.mark.parametrize("key", ["topology", "workload", "transport", "switch", "faults", "on_progress"])
def test_arguments_of_a_simulation(fabric, key):
    for value in WRONG:
        for given in (value, [value]):
            named = {"topology": fabric, "workload": sim.permutation(size_bytes=1000), "level": "flow"}
            named[key] = given
            attempt(lambda named=named: sim.simulate(**named), f"{key}={given!r}")


@pytest.mark.parametrize("key", Run.model_fields)
def test_settings_of_a_run(fabric, key):
    for value in WRONG:
        named = {"level": "flow", key: value}
        job = sim.permutation(size_bytes=1000)
        attempt(lambda named=named, job=job: sim.simulate(fabric, job, **named), f"{key}={value!r}")


@pytest.mark.parametrize("kind", JOBS)
def test_fields_of_jobs(fabric, kind):
    job = getattr(sim, kind)
    for key in job.model_fields:
        for value in WRONG:
            named = {key: value}
            if kind in ("chakra", "matrix"):
                named = {"path": "none", **named}
            attempt(
                lambda named=named: sim.simulate(fabric, job(**named), level="flow"),
                f"{kind} {key}={value!r}",
            )
    attempt(lambda: job(5), kind)
    attempt(lambda: job(bogus=5), kind)


@pytest.mark.parametrize("table", [sim.Transport, sim.Switch])
def test_fields_of_transports_and_switches(table):
    for key in table.model_fields:
        for value in WRONG:
            attempt(lambda value=value, key=key: table(**{key: value}), f"{key}={value!r}")


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "compare scenario": lambda x: sim.compare(x, ["mrc"]),
    "compare transports": lambda x: sim.compare(sim.default_scenario(), x) if x != {} else None,
    "compare transport": lambda x: sim.compare(sim.default_scenario(), [x]),
    "load_scenario": sim.load_scenario,
    "overrides": lambda x: sim.load_scenario(None, x),
    "override key": lambda x: sim.load_scenario(None, {x: 1} if not isinstance(x, list | dict) else {}),
    "override value": lambda x: sim.load_scenario(None, {"transport.evs": x}),
    "parse_scenario": sim.parse_scenario,
    "parse fabric": lambda x: sim.parse_scenario({"fabric": x, "workload": {"kind": "permutation"}}),
    "parse workload": lambda x: sim.parse_scenario({"fabric": {"kind": "clos"}, "workload": x}),
    "dump_toml": sim.dump_toml,
    "parse_faults": sim.parse_faults,
    "parse fault": lambda x: sim.parse_faults([x]),
    "fault key": lambda x: sim.parse_faults([{"kind": "plane_down", "plane": 0, "at_us": x}]),
    "Placer": sim.Placer,
    "placement": lambda x: sim.Placer(8).place(2, x),
    "ranks": lambda x: sim.Placer(8).place(x),
    "repeat table": lambda x: sim.repeat(x, 2),
    "repeat times": lambda x: sim.repeat(sim.permutation().tasks(np.arange(4)), x),
    "repeat gap": lambda x: sim.repeat(sim.permutation().tasks(np.arange(4)), 2, gap_ns=x),
    "concatenate": sim.concatenate,
    "concatenate one": lambda x: sim.concatenate([x]),
    "render": sim.render,
    "render one": lambda x: sim.render({"a": x}),
    "load result": sim.SimResult.load,
    "sweep": lambda x: sim.run_sweep(x, "nowhere"),
    "sweep scenario": lambda x: sim.Sweep(x).points(),
    "sweep settings": lambda x: sim.Sweep(sim.default_scenario(), x).points(),
    "sweep values": lambda x: sim.Sweep(sim.default_scenario(), {"transport.evs": x}).points(),
    "sweep seeds": lambda x: sim.Sweep(sim.default_scenario(), {}, x).points(),
    "validate": lambda x: sim.permutation().tasks(np.arange(4)).validate(x),
    "delays": lambda x: sim.TaskBuilder().delays(0, x),
    "after": lambda x: _after(x),
}


def _after(predecessor: Any) -> None:
    build = sim.TaskBuilder()
    build.after(build.flows(0, 1, 5), predecessor)
    build.table().validate(8)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_everything_else(name):
    for value in WRONG:
        attempt(lambda value=value: ARGUMENTS[name](value), f"{name}: {value!r}")


@pytest.mark.parametrize("key", ["folder", "processes"])
def test_arguments_of_a_sweep(key):
    for value in WRONG:
        if isinstance(value, bool) or not isinstance(value, str | int):
            with pytest.raises(sim.ConfigError):
                sim.run_sweep(sim.Sweep(sim.default_scenario()), **{"folder": "nowhere", key: value})


def test_columns_of_a_table():
    right = {"source": [0, 1], "target": [1, 0], "size_bytes": [5, 5]}
    for key in _DTYPES:
        for value in WRONG:
            attempt(
                lambda key=key, value=value: sim.TaskTable.from_columns(**{**right, key: value}).validate(8),
                f"{key}={value!r}",
            )
    for key in ("source", "target", "size_bytes", "start_ns", "delay_ns", "connection_key", "phase"):
        for value in WRONG:
            attempt(
                lambda key=key, value=value: sim.TaskBuilder().flows(
                    **{"source": 0, "target": 1, "size_bytes": 5, key: value}
                ),
                f"{key}={value!r}",
            )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: sim.simulate("fat-tree", sim.permutation()), 'topology = "fat-tree": must be a network, as'),
        (lambda f: sim.simulate(f, "x"), 'workload = "x": must be a job, such as sim.permutation()'),
        (lambda f: sim.simulate(f, []), "workload = []: there is no job in it"),
        (lambda f: sim.simulate(f, sim.permutation(), transport="mcr"), 'transport: name = "mcr": no such'),
        (lambda f: sim.simulate(f, sim.permutation(), level="packets"), 'run.level = "packets": must be'),
        (lambda f: sim.simulate(f, sim.permutation(), seed=-1), "run.seed = -1: must be greater"),
        (lambda f: sim.simulate(f, sim.permutation(), until=5), 'run: no key "until" here; did you mean'),
        (
            lambda f: sim.simulate(f, sim.permutation(), transport={"name": "mrc", "ev": 5}),
            'transport: no key "ev" here; did you mean evs?',
        ),
        (
            lambda f: sim.simulate(f, sim.permutation(), transport={"engine": {"bogus": 5}}),
            "transport: the packet engine has no setting ",
        ),
        (lambda f: sim.permutation(size_bytes=math.nan), "permutation.size_bytes = nan: must be a finite number"),
        (lambda f: sim.permutation(size_bytes=-5), "permutation.size_bytes = -5: must be greater than or equal to 1"),
        (lambda f: sim.permutation(size_bytes=2**60), f"permutation.size_bytes = {2**60}: must be less than or"),
        (lambda f: sim.permutation(size_bytes="1 MB"), "permutation.size_bytes = \"1 MB\": must be an integer"),
        (lambda f: sim.permutation(size_bytes=True), "permutation.size_bytes = True: must be an integer"),
        (lambda f: sim.permutation(1000), "permutation: 1000 has no name; valid: name, ranks, "),
        (lambda f: sim.incast(senders=[1, "x"]), "incast.senders = [1, 'x']: must be a number of ranks, or a list"),
        (lambda f: sim.simulate(f, sim.incast(senders=100)), "workload: senders is 100; 8 ranks allow 1..5"),
        (lambda f: sim.simulate(f, sim.permutation(ranks=9)), "workload: 9 ranks need as many NICs; 8 of 8 are free"),
        (lambda f: sim.simulate(f, sim.flows(pairs=((0, 8),))), "workload: pairs names rank 8; ranks are 0..7"),
        (lambda f: sim.simulate(f, sim.matrix(path="no.cm")), "workload: no.cm: cannot be read: No such file"),
        (lambda f: sim.simulate(f, sim.chakra(path="no")), "workload: no: no file named no.RANK.et is there"),
        (
            lambda f: sim.simulate(f, sim.TaskTable.from_columns(source=[0], target=[8], size_bytes=[1])),
            "workload: task 0 (job: NIC 0 -> 8, 1 B) needs a NIC the fabric does not have: it has 8",
        ),
        (
            lambda f: sim.simulate(f, sim.permutation(), faults={"kind": "nic_down"}),
            "faults = {'kind': 'nic_down'}: must be a list of tables",
        ),
        (
            lambda f: sim.simulate(f, sim.permutation(), faults=[{"kind": "nic_down", "nic": 8, "at_us": 1}]),
            "faults: faults[0]",
        ),
    ],
)  # fmt: skip
def test_what_is_said(fabric, call, message):
    with pytest.raises(sim.ConfigError) as raised:
        call(fabric)
    assert str(raised.value).startswith(message)


def test_a_matrix_for_more_nics_than_there_are_is_refused(fabric, tmp_path):
    path = tmp_path / "m.cm"
    path.write_text("Nodes 16\nConnections 1\n0->12 id 1 start 0 size 1000\n")
    with pytest.raises(sim.ConfigError, match=r"m\.cm"):
        sim.simulate(fabric, sim.matrix(path=str(path)))
