"""`farstep simulate` and `farstep sweep` as a user meets them."""

import csv
import json
import re
import subprocess
import sys

import pytest

from farstep.sim import SimResult

SMALL = """
[fabric]
kind = "leaf-spine"
leaves = 4
spines = 2
nics_per_leaf = 2
planes = 2

[workload]
kind = "permutation"
size_bytes = 100_000

[run]
level = "flow"
"""


def farstep(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farstep", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=cwd,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SMALL)
    return tmp_path


def test_a_table_is_printed(folder):
    done = farstep("simulate", "s.toml", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("leaf-spine of 8 NICs, 4 x 2: 8 flows, flow level, seed 1, ")
    for row in (
        "flow time P50",
        "flow time P99",
        "flow time P100",
        "step time P100",
        "goodput",
        "plane balance",
    ):
        assert row in done.stdout


def test_without_a_scenario_a_small_one_is_simulated_by_packets(tmp_path):
    done = farstep("simulate", "--story", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The slowest flow is task" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_figures(folder):
    def figures(seed: str) -> dict:
        done = farstep("simulate", "s.toml", "--seed", seed, "--json", cwd=folder)
        assert done.returncode == 0
        return json.loads(done.stdout)["mrc"]["metrics"]

    assert figures("1") == figures("1") != figures("2")


def test_transports_stand_side_by_side(folder):
    done = farstep(
        "simulate", "s.toml", "--compare", "mrc,roce", "--set", "workload.size_bytes=5_000", cwd=folder
    )
    assert done.returncode == 0
    assert done.stdout.split("\n")[1].split() == ["mrc", "roce"]


def test_results_are_written(folder):
    pytest.importorskip("pyarrow")
    done = farstep("simulate", "s.toml", "--compare", "mrc,tcp", "--out", "results", cwd=folder)
    assert done.returncode == 0
    note, *rest = done.stderr.splitlines()
    assert note.startswith("note: tcp: the flow level is beyond its accuracy here: ")
    assert rest == ["results are in results"], "mrc keeps its bands"
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["mrc", "tcp"]
    assert (folder / "results" / "mrc" / "tasks.parquet").exists()


def test_the_scenario_shown_is_one_that_can_be_run(folder):
    shown = farstep("simulate", "s.toml", "--show-config", "--set", "transport.evs=8", cwd=folder)
    assert shown.returncode == 0
    assert "evs = 8" in shown.stdout
    (folder / "again.toml").write_text(shown.stdout)
    assert farstep("simulate", "again.toml", "--show-config", cwd=folder).stdout == shown.stdout


def test_what_a_level_ignores_is_told(folder):
    done = farstep("simulate", "s.toml", "--set", "transport.rto_us=50", cwd=folder)
    assert done.stderr == "note: the flow level has no use for transport.rto_us\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("none.toml",), "error: none.toml: cannot be read: No such file or directory"),
        (
            ("s.toml", "--level", "packets"),
            "error: s.toml: run.level = \"packets\": must be 'packet' or 'flow'",
        ),
        (
            ("s.toml", "--compare", "mrc,rocee"),
            "error: --compare 'rocee': no such transport; valid: mrc, roce, ",
        ),
        (("s.toml", "--set", "transport.evs"), "error: --set 'transport.evs': write KEY=VALUE"),
        (
            ("s.toml", "--set", "workload.size_bytes=0"),
            "error: s.toml: workload[0].size_bytes = 0: must be greater",
        ),
        (("s.toml", "--set", "fabric.leaves=0"), "error: s.toml: fabric.leaves = 0"),
        (("s.toml", "--seed", "-1"), "error: s.toml: run.seed = -1: must be greater than or equal to 0"),
        (("s.toml", "--report", "no/where.html"), "error: --report no/where.html: there is no folder no"),
        (("s.toml", "--report", "."), "error: --report .: is a folder; name a file in it"),
        (("s.toml", "--out", "s.toml"), "error: --out s.toml: s.toml is no folder"),
        (("s.toml", "--out", "s.toml/in/it"), "error: --out s.toml/in/it: s.toml is no folder"),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(folder, arguments, error):
    done = farstep("simulate", *arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("level", ["packet", "flow"])
def test_a_run_that_gets_stuck_keeps_what_it_has_and_ends_with_status_3(folder, level):
    (folder / "s.toml").write_text(SMALL + '[[faults]]\nkind = "nic_down"\nnic = 3\nat_us = 1\n')
    kept = ("--level", level, "--out", "kept", "--report", "kept.html")
    done = farstep("simulate", "s.toml", *kept, cwd=folder)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(r"NIC \d+ (to NIC|->) \d+", last), "which flow"
    assert re.search(r"waits|failed|no path", last), "and what became of it"
    assert not re.search(r"\b167772\d\d\b", done.stderr), "packets are counted from the start of the flow"
    assert "Traceback" not in done.stderr
    assert re.search(r"^ tasks unfinished +2$", done.stdout, re.MULTILINE)
    assert "2 tasks unfinished" in done.stderr
    result = SimResult.load(folder / "kept")
    assert int((~result.finished).sum()) == 2
    assert "2 tasks are not done" in (folder / "kept.html").read_text()


def test_a_sweep_goes_on_where_it_was(folder):
    arguments = ("sweep", "s.toml", "--set", "workload.size_bytes=1000,2000", "--seeds", "0:3", "--out", "sw")
    first = farstep(*arguments, "-j", "2", cwd=folder)
    assert (first.returncode, first.stderr) == (0, "results are in sw/results.csv\n")
    assert len(list((folder / "sw" / "points").iterdir())) == 6
    with (folder / "sw" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["workload.size_bytes"], row["seed"]) for row in rows] == [
        (size, seed) for size in ("1000", "2000") for seed in "012"
    ]
    again = farstep(*arguments, cwd=folder)
    assert again.stdout == first.stdout
    assert "size_bytes" in first.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--seeds", "x"), 'error: --seeds "x": write numbers'),
        (("--set", "transport.evs=0,1"), "error: s.toml: transport.evs = 0: must be greater"),
        (("--set", "nothing=1"), "error: nothing: is no key of a scenario"),
        (("-j", "0"), "error: -j 0: at least 1 process is needed"),
        (("--to", "x.txt"), "error: x.txt: valid endings: .parquet, .csv, .json"),
    ],
)
def test_a_mistake_in_a_sweep_is_told_in_one_line(folder, arguments, error):
    done = farstep("sweep", "s.toml", *arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1


def test_a_run_that_takes_too_long_keeps_what_it_has(folder):
    limits = ("--set", "workload.size_bytes=2_000_000_000", "--set", "run.max_wall_s=0.5")
    done = farstep("simulate", "s.toml", "--level", "packet", *limits, "--out", "kept", cwd=folder)
    assert done.returncode == 3
    assert re.search(
        r"^error: mrc: ended after 0\.\d s at .* tasks are unfinished: ", done.stderr, re.MULTILINE
    )
    assert re.search(r"^ tasks unfinished +8$", done.stdout, re.MULTILINE)
    assert SimResult.load(folder / "kept").counters["delivered"] > 0


@pytest.mark.parametrize(
    ("asked", "is_told"), [("slowest", True), ("none", False), ("0,1,2,3,4,5,6,7", True)]
)
def test_flows_can_be_followed(folder, asked, is_told):
    arguments = ("simulate", "s.toml", "--level", "packet", "--story", "--trace", asked)
    done = farstep(*arguments, cwd=folder)
    assert done.returncode == 0
    assert "The slowest flow is task " in done.stdout
    assert ("Its packets were under way for " in done.stdout) == is_told


def test_what_to_follow_must_be_a_flow(folder):
    done = farstep("simulate", "s.toml", "--trace", "fast", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "error: --trace 'fast': write numbers of flows, such as 3,17, or slowest, or none\n"
    )
    done = farstep("simulate", "s.toml", "--level", "packet", "--trace", "8", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "error: run.trace_flows = 8: no such task; valid: 0 to 7\n"


def test_a_report_is_written_though_the_results_cannot_be(folder):
    (folder / "out" / "meta.json").mkdir(parents=True)  # so that writing fails, and no sooner
    done = farstep("simulate", "s.toml", "-q", "--out", "out", "--report", "report.html", cwd=folder)
    assert done.returncode == 4
    assert "error: out: cannot be written: " in done.stderr
    assert "the report is report.html" in done.stderr
    assert (folder / "report.html").stat().st_size > 100_000


def test_a_comparison_says_which_transport_left_what_unfinished(folder):
    # A NIC that is cut off: nobody gets there, and each transport says so by its name.
    (folder / "s.toml").write_text(SMALL + '[[faults]]\nkind = "nic_down"\nnic = 3\nat_us = 1\n')
    done = farstep("simulate", "s.toml", "--level", "packet", "--compare", "mrc,roce", "-q", cwd=folder)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    mrc, roce = last.removeprefix("error: mrc: ").split("; roce: ")
    for told in (mrc, roce):
        assert re.search(
            r"tasks are unfinished: task \d+: flow of \d+ bytes from NIC 3 to NIC \d+ (waits|failed) ", told
        )
