"""The torch backend in processes of their own, compared with Gloo.

One group of processes runs all checks of a case, because starting torch takes most of the time.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

WORKER = Path(__file__).with_name("torch_ranks.py")
CASE_TIMEOUT_S = 100
spec = importlib.util.spec_from_file_location("torch_ranks", WORKER)
torch_ranks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_ranks)
CASES = torch_ranks.CASES
SIZES = {"collectives": 2, "training": 2, "three": 3, "failures": 2, "killed": 2}


def run_case(case, folder):
    """Starts the ranks of a case; returns the errors of all ranks by check."""
    size = SIZES[case]
    command = [sys.executable, str(WORKER), case]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    errors = {check.__name__: [] for check in CASES[case]}
    seen = dict.fromkeys(errors, 0)
    try:
        outputs = [rank.communicate(timeout=CASE_TIMEOUT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number, (out, err) in enumerate(outputs):
        for line in out.splitlines():
            if not line.startswith("{"):
                continue
            entry = json.loads(line)
            seen[entry["check"]] += 1
            if entry["error"]:
                errors[entry["check"]].append(f"rank {number}: {entry['error']}\n{err[-2000:]}")
    expected = 1 if case == "killed" else size
    for check, count in seen.items():
        if count < expected and not errors[check]:
            errors[check].append("not reached: " + "\n".join(err[-2000:] for _, err in outputs))
    return errors


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    found = {}

    def result_of(case):
        if case not in found:
            found[case] = run_case(case, tmp_path_factory.mktemp(case))
        return found[case]

    return result_of


@pytest.mark.timeout(CASE_TIMEOUT_S + 20)
@pytest.mark.parametrize(
    ("case", "check"), [(case, c.__name__) for case, checks in CASES.items() for c in checks]
)
def test_in_processes(case, check, results):
    errors = results(case)[check]
    assert not errors, "\n".join(errors)


def test_the_backend_registers_itself():
    code = "import torch.distributed as d; print(d.Backend.backend_type_map.get('mrc'), d.is_backend_available('mrc'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["BackendType.CUSTOM", "True"]
