"""`farstep replay` on the command line."""

import json
import subprocess
import sys
from pathlib import Path

LINES = [
    {"kind": "member_joined", "member": "a-0", "site": "a"},
    {"kind": "generation", "number": 1, "run_id": "run/0123456789ab", "members": ["a-0", "b-0"]},
    {"kind": "regroup", "generation": 1, "step": 0},
    {"kind": "generation", "number": 2, "run_id": "run/0123456789ab", "members": ["a-0"]},
    {"kind": "regroup", "generation": 2, "step": 9},
    {"kind": "final_state", "step": 20, "sha256": "abcd"},
]


def farstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farstep", "replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def event_log(folder: Path) -> str:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return str(path)


def test_without_a_command_it_shows_who_had_seats(tmp_path: Path) -> None:
    done = farstep(event_log(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "from step 0: a-0, b-0",
        "from step 9: a-0",
        "end after 20 steps, SHA-256 abcd",
    ]


def test_a_log_that_cannot_be_read_is_the_users_mistake(tmp_path: Path) -> None:
    done = farstep(str(tmp_path / "nowhere.jsonl"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    done = farstep(event_log(tmp_path), "--", sys.executable, "-c", "raise SystemExit('no data here')")
    assert done.returncode == 3
    assert "no data here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_without_a_trainer_is_told_so(tmp_path: Path) -> None:
    done = farstep(event_log(tmp_path), "--", sys.executable, "-c", "pass")
    assert done.returncode == 3
    assert "farstep.Trainer" in done.stderr
