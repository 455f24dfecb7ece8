"""State in the memory of five processes, two of which are killed."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.train.memory_member import LENGTH_BYTES, FolderStore

PROGRAM = Path(__file__).with_name("memory_member.py")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("killed", [(0, 1), (1, 4)])
def test_three_of_five_processes_rebuild_what_all_held(tmp_path: Path, killed: tuple[int, int]) -> None:
    members = [
        subprocess.Popen(
            [sys.executable, PROGRAM, tmp_path, str(number), "5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(5)
    ]
    try:
        deadline_s = time.monotonic() + 90
        while len(list(tmp_path.glob("held-*"))) < 5:
            dead = [member.communicate()[0] for member in members if member.poll() is not None]
            assert not dead, dead
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        held = sum(int(path.read_text()) for path in tmp_path.glob("held-*"))
        assert held <= 1.7 * LENGTH_BYTES
        for number in killed:
            members[number].kill()
        left = [number for number in range(5) if number not in killed]
        FolderStore(tmp_path).set("left", json.dumps(left).encode())
        said = [members[number].communicate(timeout=90)[0] for number in left]
        assert [members[number].returncode for number in left] == [0, 0, 0], said
        assert [text.strip() for text in said] == ["9 1"] * 3  # five shards on three members: one more may go
    finally:
        for member in members:
            member.kill()
            member.communicate()
    image = np.random.default_rng(1).integers(0, 256, LENGTH_BYTES, dtype=np.uint8).tobytes()
    assert all((tmp_path / f"restored-{number}").read_bytes() == image for number in left)
