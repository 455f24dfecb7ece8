"""`farstep local`: whole jobs of a command on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def local(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farstep", "local", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.timeout(110)
def test_every_member_is_named_in_front_of_what_it_prints() -> None:
    done = local("--groups", "2", "--spares", "1", "--", "/bin/sh", "-c", "echo I am $FARSTEP_GROUP")
    assert done.returncode == 0, done.stderr
    lines = set(done.stdout.splitlines())
    assert {f"{name}: I am {name}" for name in ("group-0", "group-1", "spare-0")} <= lines


@pytest.mark.timeout(110)
def test_a_job_of_which_nobody_ends_well_has_failed() -> None:
    done = local("--groups", "1", "--", "/bin/false")
    assert done.returncode == 3
    assert "error: no member ended well: group-0 (1)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(110)
def test_a_command_that_is_not_there_is_named() -> None:
    done = local("--groups", "1", "--", "/nonexistent/program")
    assert done.returncode == 4
    assert "/nonexistent/program" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(110)
def test_a_member_that_did_not_end_well_is_named() -> None:
    done = local("--groups", "2", "--", "/bin/sh", "-c", '[ "$FARSTEP_GROUP" = group-0 ]')
    assert done.returncode == 3
    assert "error: the others ended well, but not group-1 (1)" in done.stderr


@pytest.mark.timeout(110)
def test_paths_of_the_wrong_kind_are_named_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, words in [
        (("local", str(tmp_path / "nowhere.py")), "nowhere.py"),
        (("local", "--out", str(tmp_path / "file"), "true"), "--out"),
        (("coordinator", "--insecure", "--out", str(tmp_path / "file" / "x")), "is a file"),
        (("status", "--coordinator", f"file:{tmp_path}"), "is a folder"),
    ]:
        command = [sys.executable, "-m", "farstep", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 2, (arguments, done.stderr)
        assert words in done.stderr.splitlines()[-1], done.stderr
