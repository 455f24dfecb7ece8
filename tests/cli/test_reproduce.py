"""`farstep reproduce` and `farstep compare`: output, errors, exit codes."""

import json
import subprocess
import sys
from pathlib import Path


def farstep(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "farstep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_row_is_printed_with_what_was_published_and_its_verdict() -> None:
    done = farstep("reproduce", "mrc", "Q9", "q7")

    assert done.returncode == 0, done.stderr
    assert "6.54" in done.stdout
    assert "1 met, 1 not reproducible" in done.stdout
    assert "1 of 2: Q9, Write latency" in done.stderr


def test_json_has_every_value_and_out_a_page(tmp_path: Path) -> None:
    done = farstep("reproduce", "mrc", "Q9", "--json", "--out", str(tmp_path / "new"))

    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["verdict"] == "met"
    assert (tmp_path / "new" / "mrc.md").read_text().startswith("# Against the MRC papers")
    assert json.loads((tmp_path / "new" / "mrc.json").read_text()) == [row]


def test_an_unknown_row_is_refused_with_those_there_are() -> None:
    done = farstep("reproduce", "mrc", "Q99")

    assert done.returncode == 2
    assert done.stderr.startswith("error: reproduce mrc 'Q99': no such experiment; valid: Q1, Q2")


def test_a_folder_without_results_of_htsim_is_refused(tmp_path: Path) -> None:
    done = farstep("reproduce", "htsim", str(tmp_path))

    assert done.returncode == 2
    assert "has no folders tm and out" in done.stderr


def test_a_scenario_that_cannot_be_compared_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('sites = ["a", "b"]\n[[paths]]\nname = "p"\n[[flows]]\nsender = "a"\n')

    done = farstep("compare", str(path))

    assert done.returncode == 2
    assert "rate_mbps" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
