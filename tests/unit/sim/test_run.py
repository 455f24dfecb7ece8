"""The Python interface, at flow level: what goes in, what comes out, what is told of mistakes."""

import pytest

from farstep import sim
from farstep.fabric.errors import ConfigError
from farstep.sim import engines, run
from tests.unit.sim.small_result import small_result


@pytest.fixture(scope="module")
def fabric():
    return sim.fabric("leaf-spine", leaves=4, spines=4, nics_per_leaf=4, planes=2)


def test_five_lines_are_enough(fabric):
    result = sim.simulate(fabric, sim.permutation(size_bytes=1_000_000), level="flow", seed=3)
    assert result.is_complete
    assert "flow time P99" in result.summary()
    assert (result.meta["level"], result.meta["transport"], result.meta["seed"]) == ("flow", "mrc", 3)
    assert result.meta["versions"].keys() == {"farstep", "numpy", "python"}


def test_a_seed_gives_the_same_result_again(fabric):
    def finish(seed: int) -> list[int]:
        workload = sim.permutation(size_bytes=1_000_000)
        return sim.simulate(fabric, workload, level="flow", transport="roce", seed=seed).finish_ns.tolist()

    assert finish(1) == finish(1) != finish(2)


def test_several_jobs_run_at_once(fabric):
    result = sim.simulate(
        fabric, [sim.permutation(ranks=8, size_bytes=5000), sim.collective(size_bytes=80_000)], level="flow"
    )
    assert result.tasks.job_names == ("permutation", "collective")
    assert result.is_complete


def test_a_table_of_tasks_is_a_workload(fabric):
    table = sim.TaskTable.from_columns(source=[0, 1], target=[5, 6], size_bytes=[1000, 2000])
    assert sim.simulate(fabric, table, level="flow").tasks is table


def test_faults_are_noted_in_the_result(fabric):
    fault = {"kind": "switch_down", "switch": "t1/p0/0", "at_us": 10, "duration_us": 50}
    result = sim.simulate(fabric, sim.permutation(size_bytes=2_000_000), level="flow", faults=[fault])
    assert [entry["time_ns"] for entry in result.meta["faults"]] == [10_000, 60_000]
    assert result.meta["faults"][0]["links"] == 8
    assert int(result.dropped.sum()) > 0


def test_a_scenario_is_simulated_as_it_is():
    scenario = sim.load_scenario(None, {"run.level": "flow", "transport.evs": 8})
    result = sim.simulate(scenario)
    assert result.meta["scenario"]["fabric"]["kind"] == "clos"
    assert result.meta["ignored"] == ["transport.evs"]


def test_transports_are_compared_on_the_same_work():
    scenario = sim.load_scenario(None, {"run.level": "flow"})
    told = []
    results = sim.compare(scenario, ["mrc", "roce"], on_progress=lambda name, progress: told.append(name))
    assert list(results) == ["mrc", "roce"]
    assert results["mrc"].tasks.target.tolist() == results["roce"].tasks.target.tolist()
    assert results["mrc"].flow_time.p100_ns < results["roce"].flow_time.p100_ns


def test_a_transport_that_gets_stuck_does_not_stop_the_others(monkeypatch):
    def engine(prepared):
        if prepared.transport.name == "roce":
            raise sim.SimulationStalled("NIC 0 waits", small_result() if prepared.run.seed == 2 else None)
        return small_result()

    monkeypatch.setattr(run, "ENGINES", {"flow": engine})
    for seed, names in ((1, ["mrc", "ndp"]), (2, ["mrc", "roce", "ndp"])):
        scenario = sim.load_scenario(None, {"run.level": "flow", "run.seed": seed})
        stuck = []
        results = sim.compare(
            scenario,
            ["mrc", "roce", "ndp"],
            on_stall=lambda name, error, stuck=stuck: stuck.append((name, str(error))),
        )
        assert list(results) == names
        assert stuck == [("roce", "NIC 0 waits")]
    assert results["roce"].meta["stalled"] == "NIC 0 waits"
    with pytest.raises(sim.SimulationStalled):
        sim.compare(scenario, ["roce"])


def test_a_run_that_gets_stuck_says_who_waits(fabric):
    fault = {"kind": "nic_down", "nic": 3, "at_us": 1}
    with pytest.raises(sim.SimulationStalled, match=r"NIC .*3"):
        sim.simulate(fabric, sim.permutation(size_bytes=1_000_000), level="flow", faults=[fault])


def test_progress_counts_tasks_or_time():
    assert sim.Progress(done=1, tasks=4, now_ns=0).share == 0.25
    assert sim.Progress(done=0, tasks=4, now_ns=50, until_ns=100).share == 0.5
    assert sim.Progress(done=0, tasks=4, now_ns=500, until_ns=100).share == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "workload: what is to be simulated is missing"),
        ({"workload": sim.permutation(ranks=99)}, "workload: 99 ranks need as many NICs; 16 of 16 are free"),
        ({"workload": sim.permutation(), "transport": "mcr"}, 'transport: name = "mcr": no such transport'),
        ({"workload": sim.permutation(), "transport": {"evs": 0}}, "transport.evs = 0: must be greater than"),
        (
            {"workload": sim.permutation(), "level": "pakcet"},
            "run.level = \"pakcet\": must be 'packet' or 'flow'",
        ),
        (
            {"workload": sim.permutation(), "untill_us": 5},
            'run: no key "untill_us" here; did you mean until_us?',
        ),
        ({"workload": sim.permutation(), "switch": {"queue_bytes": -1}}, "switch.queue_bytes = -1"),
        (
            {"workload": sim.permutation(), "faults": [{"kind": "nic_down", "nic": 77, "at_s": 0}]},
            "nic = 77: no such NIC",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(fabric, arguments, message):
    with pytest.raises(sim.ConfigError) as caught:
        sim.simulate(fabric, **{"level": "flow", **arguments})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_name_offered_is_there():
    for name in sim.__all__:
        assert getattr(sim, name) is not None
    assert set(engines.ENGINES) == {"packet", "flow"}
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = sim.simulat


def test_progress_of_packets_is_told_until_all_is_done(fabric):
    told = []
    result = sim.simulate(fabric, sim.permutation(size_bytes=200_000_000), on_progress=told.append)
    quiet = sim.simulate(fabric, sim.permutation(size_bytes=200_000_000))
    assert len(told) > 1
    assert told[-1].done == 16
    assert [entry.now_ns for entry in told] == sorted(entry.now_ns for entry in told)
    assert result.finish_ns.tolist() == quiet.finish_ns.tolist()  # being told changes nothing


def test_how_long_a_marked_path_sits_out_is_a_knob_of_mrc():
    fabric = sim.fabric("leaf-spine", leaves=2, spines=8, nics_per_leaf=8)
    slow = {"kind": "rate", "link": "t0/p0/0-t1/p0/3", "rate_percent": 25, "at_us": 0}

    def last_ns(**knobs):
        transport = {"name": "mrc", "evs": 16, **knobs}
        workload = sim.permutation(size_bytes=4_000_000)
        return sim.simulate(fabric, workload, transport=transport, faults=[slow]).flow_times_ns().max()

    assert last_ns(skip_passes=1) == last_ns()
    assert len({last_ns(skip_passes=passes) for passes in (0, 1, 50)}) == 3
    with pytest.raises(ConfigError, match=r"^transport\.skip_passes = -1: "):
        last_ns(skip_passes=-1)
