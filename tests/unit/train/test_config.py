"""The configuration: defaults, round trip through TOML, and one exact line for each kind of mistake."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farstep.fabric import FaultScript
from farstep.lab.standalone import load_emulation
from farstep.train import ConfigError, RunConfig, demo_config, dump_toml, load_config, parse_config
from farstep.train.config import ModelConfig, NetworkConfig, OptimizerConfig, SiteConfig


def parse(text: str) -> RunConfig:
    return parse_config(tomllib.loads(text), source="run.toml")


CUT = '[[faults]]\nkind = "path_down"\npath = "east-west:1"\n'

MISTAKES = {
    "unknown key, near miss": (
        "[run]\nstpes = 3",
        "run.toml: run.stpes = 3: unknown key; did you mean steps?",
    ),
    "more groups wanted than there are": (
        "[run]\nmin_groups = 5",
        "run.toml: run.min_groups = 5: must be at most 4, the replica groups of all sites together",
    ),
    "unknown key, nothing like it": (
        "[run]\nfoo = 3",
        "run.toml: run.foo = 3: unknown key; valid here: seed, steps, out, eval_every_steps, eval_windows, "
        "min_groups, silence_s, checkpoint_every_steps, threads_per_rank",
    ),
    "unknown section": (
        "[modle]\nlayers = 3",
        "run.toml: modle = a table: unknown key; did you mean model?",
    ),
    "key of another section": (
        "steps = 3",
        "run.toml: steps = 3: unknown key; did you mean run.steps?",
    ),
    "another unit": (
        "[network]\nrate_gbps = 3",
        "run.toml: network.rate_gbps = 3: unknown key; the unit is mbps: write rate_mbps",
    ),
    "no unit": (
        "[network]\ndelay = 3",
        "run.toml: network.delay = 3: unknown key; the unit is ms: write delay_ms",
    ),
    "unit in the value": (
        '[network]\nrate_mbps = "500 Mbit/s"',
        'run.toml: network.rate_mbps = "500 Mbit/s": must be a number greater than 0 and at most 1600000 '
        "(rate of each emulated path, Mbit/s)",
    ),
    "too small": (
        "[network]\nrate_mbps = -3",
        "run.toml: network.rate_mbps = -3: must be a number greater than 0 and at most 1600000 "
        "(rate of each emulated path, Mbit/s)",
    ),
    "wrong type": (
        '[model]\nwidth = "wide"',
        'run.toml: model.width = "wide": must be an integer at least 8 and at most 16384 '
        "(features per position; a multiple of heads)",
    ),
    "fraction of a step": (
        "[run]\nsteps = 3.5",
        "run.toml: run.steps = 3.5: must be an integer at least 1 and at most 10000000 (optimizer steps)",
    ),
    "number for a truth": (
        "[network]\nemulate = 1",
        "run.toml: network.emulate = 1: must be true or false "
        "(carry traffic between sites through the path emulator)",
    ),
    "not in the list": (
        "[transport]\nmtu_bytes = 1500",
        "run.toml: transport.mtu_bytes = 1500: must be one of 1024, 2048, 4096, 8192 (payload of one packet)",
    ),
    "two keys that do not fit": (
        "[model]\nheads = 7",
        "run.toml: model.heads = 7: must divide model.width (160)",
    ),
    "missing": (
        "[[sites]]\nreplica_groups = 2",
        "run.toml: sites[0].name is missing: must be a text in quotes, not empty (letters, digits, - and _)",
    ),
    "a space in a name": (
        '[[sites]]\nname = "a b"',
        'run.toml: sites[0].name = "a b": must be a text in quotes, not empty (letters, digits, - and _)',
    ),
    "a name twice": (
        '[[sites]]\nname = "a"\n[[sites]]\nname = "a"',
        'run.toml: sites = [a table, a table]: every site needs a name of its own; "a" is used twice',
    ),
    "a name that no file can have": (
        '[run]\nout = "a\\u0000b"',
        'run.toml: run.out = "a\\u0000b": must not contain the character of number zero',
    ),
    "no table": (
        "run = 3",
        "run.toml: run = 3: must be a table, written as [run]",
    ),
    "no array of tables": (
        "sites = 3",
        "run.toml: sites = 3: must be an array of tables, written as [[sites]]",
    ),
    "a fault on nothing": (
        '[[faults]]\nkind = "path_down"\npath = "north"\nat_step = 1',
        'run.toml: faults[0].path = "north": no such path; '
        "known paths: east-west:0, east-west:1, east-west:2, east-west:3",
    ),
    "a fault without network": (
        f"network.emulate = false\n{CUT}at_step = 1",
        "run.toml: faults: no path to apply them to, because network.emulate is false; remove the faults",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_file_key_value_and_what_is_valid(mistake: str):
    text, message = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("fault", ["at_ste = 1", "at_s = 1\nat_step = 1", 'at_step = "x"', ""])
def test_a_mistake_in_a_fault_is_one_line_that_names_the_fault(fault: str):
    with pytest.raises(ConfigError, match=r"^run\.toml: faults\[0\][^\n]*$"):
        parse(CUT + fault)


def test_an_override_is_blamed_on_the_command_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[run]\nsteps = 5\n")
    assert load_config(path, {"run.steps": 7}).run.steps == 7
    with pytest.raises(ConfigError, match=r"^command line: run\.steps = 0: must be an integer"):
        load_config(path, {"run.steps": 0})


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: is not valid TOML: .*line 1"):
        load_config(broken)
    broken.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"broken\.toml: is not UTF-8 text"):
        load_config(broken)
    with pytest.raises(ConfigError, match=r"cannot be read: embedded null"):
        load_config(Path("run\0.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "[" * 3000 + "]" * 3000, "arrays or tables are nested too deeply"),
        ("x = " + "9" * 5000, "a number is too long"),
    ],
)
def test_toml_beyond_all_measure_is_refused_in_one_line(tmp_path, text: str, message: str):
    path = tmp_path / "run.toml"
    path.write_text(text)
    for load in (load_config, FaultScript.load, load_emulation):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value) == f"{path}: is not usable TOML: {message}"


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("\ufeff[run]\nsteps = 5\n", encoding="utf-8")
    assert load_config(path).run.steps == 5


@pytest.mark.parametrize("steps", [10**20, 0, -1, True])
def test_a_number_of_steps_that_cannot_be_is_blamed_on_the_command_line(steps: int):
    with pytest.raises(
        ConfigError, match=r"^command line: run\.steps = [-\w]+: must be an integer at least 1"
    ):
        load_config(None, {"run.steps": steps})


def test_a_fault_behind_the_end_is_told_and_no_mistake():
    """`--show-config > run.toml` and then fewer steps is what the guide suggests."""
    config = parse_config(demo_config().model_dump(mode="json", exclude_none=True), source="run.toml")
    assert config.faults_too_late() == ()
    shorter = parse("[run]\nsteps = 3\n" + CUT + "at_step = 3")
    assert shorter.faults_too_late() == (
        "faults[0] (path_down) will not happen: it begins at step 3, and the last of 3 steps is 2",
    )
    assert parse("[run]\nsteps = 3\n" + CUT + "at_step = 2").faults_too_late() == ()


def test_what_is_left_out_has_its_default():
    assert parse("") == RunConfig()
    assert parse("[run]\nsteps = 5").model == ModelConfig()


def test_the_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().run.steps = 3  # type: ignore[misc]


def test_the_demo_is_two_sites_with_two_replica_groups_and_one_cut_inside_the_run():
    config = demo_config()
    assert config.site_of_rank == ("east", "east", "west", "west")
    (cut,) = config.faults
    assert cut.kind == "path_down"
    assert 0 < cut.at_step < cut.at_step + cut.duration_steps < config.run.steps
    network = config.emulated_network()
    assert network is not None
    assert [path.name for path in network.paths] == [f"east-west:{plane}" for plane in range(4)]


@given(steps=st.integers(1, 100_000))
def test_the_cut_of_the_demo_fits_every_length(steps: int):
    (cut,) = demo_config(steps).faults
    assert 1 <= cut.at_step <= max(1, steps - 1) or steps == 1


def test_one_site_has_no_emulated_network():
    assert parse('[[sites]]\nname = "home"').emulated_network() is None


CONFIGS = st.builds(
    RunConfig,
    sites=st.lists(
        st.builds(
            SiteConfig, name=st.from_regex(r"[a-z]{1,8}", fullmatch=True), replica_groups=st.integers(1, 9)
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda site: site.name,
    ).map(tuple),
    network=st.builds(
        NetworkConfig,
        planes=st.integers(1, 16),
        rate_mbps=st.floats(0.001, 1e5),
        delay_ms=st.floats(0, 1e3),
        emulate=st.booleans(),
    ),
    optimizer=st.builds(OptimizerConfig, learning_rate=st.floats(1e-6, 1.0)),
)


@given(config=CONFIGS)
def test_what_is_shown_reads_back_to_the_same(config: RunConfig):
    assert parse(dump_toml(config)) == config


def test_the_demo_as_shown_reads_back_to_the_same():
    text = dump_toml(demo_config())
    assert parse(text) == demo_config()
    assert "rate_mbps = 500.0" in text
    assert "# rate of each emulated path, Mbit/s" in text


def test_any_text_survives_the_round_trip():
    for name in ('a "quoted" name', "back\\slash", "tab\tand\nline", "\x7f", "ümläut"):
        config = parse_config({"data": {"text": name}}, source="run.toml")
        assert parse(dump_toml(config)).data.text == name


PATHS = """
[[paths]]
name = "north"
plane = 0
rate_mbps = 200.0
delay_ms = 5.0
[[paths]]
name = "south"
plane = 1
rate_mbps = 50.0
"""


def test_paths_of_their_own_replace_the_equal_ones_and_read_back():
    config = parse(PATHS)
    assert config.num_planes == 2
    network = config.emulated_network()
    assert network is not None
    assert [(path.name, path.rate_mbps) for path in network.paths] == [("north", 200.0), ("south", 50.0)]
    assert parse(dump_toml(config)) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PATHS.replace("plane = 1", "plane = 2"),
            r"run\.toml: paths: no path of plane 1 joins east and west; planes",
        ),
        (PATHS.replace("south", "north"), r'run\.toml: .*"north" is used twice'),
        (PATHS.replace("rate_mbps", "rate_mbp"), r"run\.toml: paths\[0\].*rate_mbp"),
    ],
)
def test_paths_that_do_not_fit_are_named(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        parse(text)
