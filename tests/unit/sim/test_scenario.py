"""Scenarios: what a file may say, what is told of mistakes, and that what is shown can be read back."""

import tomllib

import pytest

from farstep.fabric.errors import ConfigError
from farstep.sim.run import simulate
from farstep.sim.scenario import default_scenario, dump_toml, load_scenario, parse_scenario

SMALL = """
[fabric]
kind = "leaf-spine"
leaves = 4
spines = 2
nics_per_leaf = 4
planes = 2

[[workload]]
kind = "permutation"
size_bytes = 20000
ranks = 8
placement = "spread"

[[workload]]
kind = "collective"
name = "reduce"
size_bytes = 80000

[[faults]]
kind = "nic_down"
nic = 3
at_us = 5
"""


def parse(text: str, **overrides):
    return parse_scenario(tomllib.loads(text), source="x.toml", overrides=overrides)


def test_jobs_share_the_fabric():
    scenario = parse(SMALL)
    table = scenario.tasks()
    assert table.job_names == ("permutation", "reduce")
    used = [set(table.source[table.job == job].tolist()) for job in (0, 1)]
    assert used[0] == {0, 1, 4, 5, 8, 9, 12, 13}  # two NICs of each rack
    assert used[1] == set(range(16)) - used[0]
    (action,) = scenario.actions()
    assert action.time_ns == 5_000


def test_two_jobs_of_a_kind_draw_differently():
    text = SMALL.replace('kind = "collective"\nname = "reduce"', 'kind = "permutation"\nranks = 8')
    table = parse(text).tasks()
    first, second = (table.target[table.job == job] - table.source[table.job == job] for job in (0, 1))
    assert first.tolist() != second.tolist()


def test_a_job_that_names_its_nics_goes_first():
    text = SMALL.replace("size_bytes = 80000", "size_bytes = 80000\nplacement = [0, 1, 2]")
    table = parse(text).tasks()
    assert set(table.source[table.job == 1].tolist()) == {0, 1, 2}
    assert not {0, 1, 2} & set(table.source[table.job == 0].tolist())


def test_steps_start_and_repeat_as_told():
    text = SMALL.replace('name = "reduce"', 'name = "reduce"\nrepeat = 3\nstart_us = 7')
    table = parse(text, **{"run.repeat": 2}).tasks()
    assert [int(table.tag[table.job == job].max()) + 1 for job in (0, 1)] == [2, 3]
    roots = (table.job == 1) & (table.tag == 0) & (table.dep_offset[1:] == table.dep_offset[:-1])
    assert set(table.start_ns[roots].tolist()) == {7_000}


def test_a_job_in_the_background_counts_in_no_time():
    healthy = SMALL.partition("[[faults]]")[0]
    scenario = parse(healthy, **{"run.level": "flow", "workload[1].background": True})
    result = simulate(scenario)
    assert set(result.tasks.tag[result.tasks.job == 1].tolist()) == {-1}
    assert result.flow_time.count == 8
    assert len(result.step_times_ns()) == 1
    assert len(result.flow_times_ns(job="reduce")) == 8 * 14


def test_one_workload_needs_no_double_brackets():
    scenario = parse('[fabric]\nkind = "fat-tree"\nnics = 16\n[workload]\nkind = "permutation"\n')
    assert len(scenario.workload) == 1


@pytest.mark.parametrize("text", [SMALL, dump_toml(default_scenario())])
def test_what_is_shown_is_read_back(text):
    shown = dump_toml(parse(text))
    assert dump_toml(parse(shown)) == shown
    assert parse(shown).table() == parse(text).table()


def test_sites_are_shown_and_read_back():
    text = """
[fabric]
kind = "multi-site"
wan = [{ between = ["a", "b"], fibre_km = 50, links = 2 }]
[fabric.sites.a]
kind = "leaf-spine"
leaves = 2
spines = 1
nics_per_leaf = 2
[fabric.sites.b]
kind = "leaf-spine"
leaves = 2
spines = 1
nics_per_leaf = 2
[workload]
kind = "permutation"
"""
    shown = dump_toml(parse(text))
    assert parse(shown).topology.site_names == ("a", "b")
    assert dump_toml(parse(shown)) == shown


def test_overrides_win():
    scenario = parse(
        SMALL, **{"transport.evs": 16, "fabric.planes": 4, "workload[1].size_bytes": 5, "workload.0.ranks": 4}
    )
    assert scenario.transport.evs == 16
    assert scenario.topology.num_planes == 4
    assert (scenario.workload[1].size_bytes, scenario.workload[0].ranks) == (5, 4)
    again = scenario.with_overrides(
        {"transport.name": "roce", "transport.engine.gamma": 0.9, "faults.nic": 2}
    )
    assert (again.transport.name, again.transport.evs, again.transport.engine) == ("roce", 16, {"gamma": 0.9})
    assert again.faults[0].table["nic"] == 2


def everything_of(text: str) -> None:
    scenario = parse(text)
    scenario.tasks()
    scenario.actions()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "leaf-spine"', 'kind = "leafspine"', 'x.toml: fabric.kind = "leafspine": no such network; valid: '),
        ('kind = "leaf-spine"', "", "x.toml: fabric.kind: this key is required"),
        ("leaves = 4", "leafs = 4", "x.toml: fabric.leafs: a network of kind \"leaf-spine\" has no such key"),
        ("leaves = 4", "leaves = 0", "x.toml: fabric.leaves = 0"),
        ("leaves = 4", 'leaves = "4"', "x.toml: fabric"),
        ("size_bytes = 20000", "size_mb = 20", 'x.toml: workload[0]: no key "size_mb" here'),
        ("size_bytes = 20000", "size_bytes = 0", "x.toml: workload[0].size_bytes = 0: must be greater than"),
        ("size_bytes = 20000", 'size_bytes = "20 kB"', 'x.toml: workload[0].size_bytes = "20 kB": must be an integer'),
        ('kind = "permutation"', 'kind = "permuation"', 'x.toml: workload: kind[0] = "permuation" is not known; valid'),
        ('kind = "permutation"', "", "x.toml: workload: kind[0] is required; valid: permutation, "),
        ("ranks = 8", "ranks = 17", "x.toml: workload[0]: 17 ranks need as many NICs; 16 of 16 are free"),
        ("ranks = 8", "ranks = 16", "x.toml: workload[1]: 0 ranks need as many NICs; 0 of 16 are free"),
        ('placement = "spread"', 'placement = "near"', "x.toml: workload[0].placement"),
        ("nic = 3", "nic = 99", 'x.toml: faults[0].nic = 99: no such NIC "99"; valid: 0 to 15'),
        ("at_us = 5", "at_us = -5", "x.toml: faults[0].at_us = -5: must be a number, at least 0"),
        ("[[faults]]", "[faults]", "x.toml: faults: must be an array of tables, written as [[faults]]"),
        ("[fabric]", '[transport]\nname = "mcr"\n[fabric]', 'x.toml: transport: name = "mcr": no such transport; '),
        ("[fabric]", "[transport]\nevz = 5\n[fabric]", 'x.toml: transport: no key "evz" here; did you mean evs?'),
        ("[fabric]", "[transport]\nevs = 5000\n[fabric]", "x.toml: transport.evs = 5000: must be less than"),
        ("[fabric]", "[transport]\nmpr_packets = 130\n[fabric]", "mpr_packets = 130: must be a multiple of 128"),
        ("[fabric]", "[switch]\necn_min_bytes = 9\necn_max_bytes = 5\n[fabric]", "ecn_min_bytes = 9: must not exceed"),
        ("[fabric]", "[run]\nlevel = \"packets\"\n[fabric]", 'x.toml: run.level = "packets": must be \'packet\''),
        ("[fabric]", "[run]\nuntil_s = 1\nuntil_us = 1\n[fabric]", "x.toml: run: give until_us or until_s, not both"),
        ("[fabric]", "[runn]\nseed = 1\n[fabric]", 'x.toml: no key "runn" here; did you mean run?'),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(old, new, message):
    with pytest.raises(ConfigError) as caught:
        everything_of(SMALL.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("evs", "evs: is no key of a scenario; write SECTION.KEY"),
        (
            "nothing.evs",
            "nothing.evs: is no key of a scenario; write SECTION.KEY, such as transport.evs; sections: ",
        ),
        ("transport.evs ", "is no key of a scenario"),
        (
            "workload.size_bytes",
            "workload.size_bytes: there are 2 such tables; write the number, as in [0].size_bytes",
        ),
        ("workload[5].size_bytes", "there are 2 such tables"),
        ("fabric.kind.x", "fabric.kind.x: there is no table to change"),
        ("transport.evz", 'no key "evz" here; did you mean evs?'),
    ],
)
def test_a_wrong_override_is_told(key, message):
    with pytest.raises(ConfigError) as caught:
        parse(SMALL, **{key: 3})
    assert message in str(caught.value)


def test_files_are_found_from_the_scenarios_folder(tmp_path):
    (tmp_path / "m.cm").write_text("Nodes 4\n0->1 start 0 size 500\n")
    (tmp_path / "s.toml").write_text(
        '[fabric]\nkind = "fat-tree"\nnics = 16\n[workload]\nkind = "matrix"\npath = "m.cm"\n'
    )
    scenario = load_scenario(tmp_path / "s.toml")
    assert scenario.tasks().size_bytes.tolist() == [500]
    (tmp_path / "m.cm").unlink()
    with pytest.raises(ConfigError, match=r"s\.toml: workload: .*m\.cm: cannot be read"):
        load_scenario(tmp_path / "s.toml").tasks()


def test_training_takes_what_the_ranks_leave():
    text = SMALL.replace(
        'kind = "collective"\nname = "reduce"\nsize_bytes = 80000',
        'kind = "training"\ntensor = 2\ngradient_bytes = 400',
    )
    table = parse(text).tasks()
    training = table.job == 1
    assert len(set(table.source[training].tolist())) == 8
    wrong = text.replace("tensor = 2", "tensor = 3")
    with pytest.raises(ConfigError, match="tensor x pipeline = 3 must divide the 8 ranks"):
        parse(wrong).tasks()
