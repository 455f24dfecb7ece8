"""A minute of fuzzing, and what earlier fuzzing has left: `make fuzz` does the same for hours."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz import CORPUS, LIVE, SOURCES

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 15


def test_every_target_has_a_corpus():
    assert set(SOURCES) == {"endpoint", "protection", "wire"}
    for target in SOURCES:
        inputs = list((CORPUS / target).iterdir())
        assert 10 < len(inputs) < 100, target
        assert sum(path.stat().st_size for path in inputs) < 50_000, "a corpus stays small"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*SOURCES, LIVE])
def test_fuzzing_finds_nothing(target):
    done = subprocess.run(
        [sys.executable, "tools/fuzz.py", "--seconds", str(SECONDS), target],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fuzzing_works_without_a_fuzzer():
    done = subprocess.run(
        [sys.executable, "tools/fuzz.py", "--seconds", "3", "--seeded", "--seed", "1", "protection"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inputs from" in done.stdout


def test_a_target_that_does_not_exist_is_named():
    done = subprocess.run(
        [sys.executable, "tools/fuzz.py", "nothing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "there is no target nothing; valid: endpoint, protection, wire, live" in done.stderr
