"""Files cut off, changed or removed; and writers killed at any time."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farstep.train.checkpoint import Checkpoint, CheckpointError, CheckpointFolder, CheckpointInfo
from farstep.train.checkpoint.files import hash_of_file
from farstep.train.checkpoint.manifest import FileEntry, Manifest
from tests.unit.train.checkpoint.states import assert_is_state_of, loaded_newest, state_of

FILES = ["manifest.json", "state.json", ".metadata", "__0_0.distcp"]


@pytest.fixture
def two(tmp_path: Path) -> CheckpointInfo:
    """Two checkpoints, of steps 1 and 2; the newer one is returned."""
    with Checkpoint(tmp_path) as checkpoint:
        for step in (1, 2):
            handle = checkpoint.save(step, state_of(step))
            assert handle.wait(30)
    return handle.info


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = random.Random(5).randrange(len(content))
    content[place] ^= 1 << place % 8
    path.write_bytes(content)


def zero_a_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(len(content[middle : middle + 64]))
    path.write_bytes(content)


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage", [cut_off, empty, lengthen, flip_a_bit, zero_a_page, Path.unlink, make_a_folder]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(
    two: CheckpointInfo, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(two.path / name)
    events = []
    with Checkpoint(two.path.parent) as checkpoint:
        checkpoint.on_event = lambda kind, fields: events.append((kind, fields))
        info = checkpoint.newest()
        assert info.step == 1
        assert_is_state_of(checkpoint.load(info, {}), 1)
    ((kind, fields),) = events
    assert kind == "checkpoint_broken"
    assert fields["path"] == str(two.path)
    assert name in fields["cause"]
    assert name in caplog.text


def test_every_single_byte_counts(two: CheckpointInfo) -> None:
    folder = CheckpointFolder(two.path.parent)
    generator = random.Random(1)
    for name in FILES:
        path = two.path / name
        content = path.read_bytes()
        for place in generator.sample(range(len(content)), 40):
            changed = bytearray(content)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            info, broken = folder.newest()
            # JSON may be written in several ways; what it says is what counts.
            is_same = name == "manifest.json" and json_of(changed) == json_of(content)
            assert is_same or (info.step, [one.path for one in broken]) == (1, [two.path])
        path.write_bytes(content)
    assert folder.newest()[0] == two


def json_of(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_with_nothing_whole_there_is_nothing(two: CheckpointInfo) -> None:
    for path in two.path.parent.glob("step-*"):
        empty(path / "state.json")
    folder = CheckpointFolder(two.path.parent)
    info, broken = folder.newest()
    assert info is None
    assert [one.path.name for one in broken] == ["step-0000000002", "step-0000000001"]
    assert str(broken[0]) == f"step-0000000002: state.json has 0 bytes, of {entry(two)}"
    assert folder.survey() == ([], broken)


def entry(info: CheckpointInfo) -> int:
    return info.manifest.files["state.json"].length_bytes


def test_a_checkpoint_under_the_name_of_another_step_is_refused(two: CheckpointInfo) -> None:
    two.path.rename(two.path.parent / "step-0000000009")
    info, broken = CheckpointFolder(two.path.parent).newest()
    assert info.step == 1
    assert broken[0].problem == "the manifest is that of step 2"


def test_other_things_in_the_folder_do_not_matter(two: CheckpointInfo) -> None:
    for name in ("notes.txt", "step-latest", "step-0000000010.tmp", "step--1"):
        (two.path.parent / name).mkdir()
    assert loaded_newest(two.path.parent).step == 2
    assert CheckpointFolder(two.path.parent / "nowhere").newest() == (None, [])


def test_a_manifest_names_no_file_elsewhere(two: CheckpointInfo) -> None:
    files = {**two.manifest.files, "../step-0000000001/state.json": FileEntry(1, "00")}
    manifest = Manifest(step=2, saved_at="", files=files)
    (two.path / "manifest.json").write_bytes(manifest.to_json())
    _, broken = CheckpointFolder(two.path.parent).newest()
    assert "is not a file of the folder" in broken[0].problem


def test_a_manifest_of_another_version_is_refused(two: CheckpointInfo) -> None:
    path = two.path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    _, broken = CheckpointFolder(two.path.parent).newest()
    assert 'version 2; this version reads "farstep checkpoint" version 1' in broken[0].problem


def reseal(info: CheckpointInfo, name: str) -> CheckpointInfo:
    """Makes hashes right again, as only somebody who wants to deceive would."""
    files = {**info.manifest.files, name: FileEntry(*hash_of_file(info.path / name))}
    manifest = Manifest(step=info.step, saved_at=info.saved_at, files=files)
    (info.path / "manifest.json").write_bytes(manifest.to_json())
    return CheckpointInfo(info.path, manifest)


class Evil:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("evil-was-here",)


@pytest.mark.parametrize(
    "content", [pickle.dumps(Evil()), pickle.dumps({"a": 1}), b"", b"\x80\x05cos\nsystem\n."]
)
def test_metadata_runs_no_code(
    two: CheckpointInfo, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (two.path / ".metadata").write_bytes(content)
    info = reseal(two, ".metadata")
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.newest() == info
        with pytest.raises(CheckpointError, match="metadata"):
            checkpoint.load(info, {})
    assert not Path("evil-was-here").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"names": 3}', '{"names": ["model.nothing"], "skeleton": {"T": 0}}']
)
def test_a_state_that_means_nothing_is_an_error_and_no_more(two: CheckpointInfo, content: str) -> None:
    (two.path / "state.json").write_text(content)
    info = reseal(two, "state.json")
    with Checkpoint(two.path.parent) as checkpoint, pytest.raises(CheckpointError, match="step-0000000002"):
        checkpoint.load(info, {})


def test_a_checkpoint_that_vanishes_while_it_is_read_is_an_error(two: CheckpointInfo) -> None:
    with Checkpoint(two.path.parent) as checkpoint:
        info = checkpoint.newest()
        (two.path / "__0_0.distcp").unlink()
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            checkpoint.load(info, {})


WRITER = """
import sys
from tests.unit.train.checkpoint.killed_writer import serve
serve(sys.argv[1])
"""


def kill_writers(folder: Path, times: int, seed: int) -> set[int]:
    """Kills a writer at random moments after none to three checkpoints; returns how many each had announced."""
    generator = random.Random(seed)
    announced, last = set(), 0
    arguments = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        for _ in range(times):
            server.stdin.write("start\n")
            server.stdin.flush()
            writer = int(server.stdout.readline())
            assert server.stdout.readline() == "begun\n"
            steps = [int(server.stdout.readline()) for _ in range(generator.randrange(4))]
            time.sleep(generator.uniform(0, 0.1))
            os.kill(writer, signal.SIGKILL)
            while (line := server.stdout.readline()) != "gone\n":
                steps.append(int(line))
            announced.add(len(steps))
            last = max([last, *steps])
            info = loaded_newest(folder, size=200_000)
            assert (0 if info is None else info.step) >= last
    assert not [path for path in folder.iterdir() if path.name.startswith(".")] or last > 0
    return announced


def test_a_writer_killed_at_any_moment_leaves_the_newest_complete_one(tmp_path: Path) -> None:
    assert max(kill_writers(tmp_path, 6, seed=1)) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_killed_writers_leave_the_newest_complete_one(tmp_path: Path) -> None:
    assert len(kill_writers(tmp_path, 100, seed=2)) > 2
