"""What the supervisor makes of what its ranks say; the ranks here are lines without a process."""

import threading
from pathlib import Path

import numpy as np
import pytest

from farstep.observe.events import read_events
from farstep.train.config import NetworkConfig, RunConfig, RunSection
from farstep.train.control import ControlClient
from farstep.train.data import Corpus
from farstep.train.errors import ConfigError
from farstep.train.result import RunResult
from farstep.train.supervisor import Supervisor

CONFIG = RunConfig(run=RunSection(steps=3), network=NetworkConfig(emulate=False))
AT_LEAST_THREE = CONFIG.model_copy(update={"run": RunSection(steps=3, min_groups=3)})
CORPUS = Corpus(name="text", sha256="0" * 64, train=np.zeros(1, np.uint8), held_out=np.zeros(1, np.uint8))
READY = {"num_parameters": 1, "torch_version": "2"}
DONE = {"steps": 3, "is_interrupted": False, "final_loss": 1.0, "state_hash": "end"}
STEP = {"loss": 5.0, "tokens": 8, "step_time_ns": 9, "allreduce_ns": 1}


class FakeRun:
    """A supervisor and the lines of four ranks."""

    def __init__(self, folder: Path, config: RunConfig = CONFIG) -> None:
        # No coordinator is needed where nobody joins.
        self.supervisor = Supervisor(config, CORPUS, folder, coordinators=["ws://127.0.0.1:9"])
        self.results: list[RunResult] = []
        self.thread = threading.Thread(target=lambda: self.results.append(self.supervisor.run()))
        self.thread.start()
        self.stopped = [threading.Event() for _ in range(4)]
        self.aborted: list[list[str]] = [[] for _ in range(4)]
        self.lines = [self._connect(rank) for rank in range(4)]

    def _connect(self, rank: int) -> ControlClient:
        def on_abort(reason: str) -> None:
            self.aborted[rank].append(reason)
            self.lines[rank].close()

        supervisor = self.supervisor
        return ControlClient(
            supervisor.address, supervisor.token, rank, on_stop=self.stopped[rank].set, on_abort=on_abort
        )

    def all_ready(self) -> None:
        for line in self.lines:
            line.send("loaded")
        for line in self.lines:
            assert line.wait_answer(10) == {
                "kind": "join",
                "coordinators": ["ws://127.0.0.1:9"],
                "is_own": False,
            }
            line.send("ready", **READY)
        for line in self.lines:
            assert line.wait_answer(10)["kind"] == "go"

    def event(self, rank: int, event: str, **fields) -> None:
        self.lines[rank].send("event", event=event, at_ns=0, fields=fields)

    def leave(self, rank: int, kind: str, **fields) -> None:
        self.lines[rank].send(kind, **fields)
        self.lines[rank].close()

    def result(self) -> RunResult:
        self.thread.join(20)
        (result,) = self.results
        return result


@pytest.fixture
def run(tmp_path):
    run = FakeRun(tmp_path)
    yield run
    for line in run.lines:
        line.close()
    run.thread.join(20)


def events_of(result: RunResult, kind: str) -> list:
    return [record.event for record in read_events(result.events_path) if record.event.kind == kind]


def test_a_run_is_finished_when_all_ranks_have_ended_with_the_same_bits(run):
    run.event(0, "checkpoint", action="loaded", step=0)  # before the run begins
    run.all_ready()
    for rank in range(4):
        run.event(rank, "step", step=0, **STEP)
        run.lines[rank].send("held_out", step=3, shares={rank: [2.0 * 8, 8]})
        run.leave(rank, "done", **DONE)
    result = run.result()
    assert (result.status, result.reason, result.steps, result.held_out_loss) == ("finished", None, 3, 2.0)
    assert result.replica_hashes == dict.fromkeys(("east-0", "east-1", "west-0", "west-1"), "end")
    assert result.is_identical
    kinds = [record.event.kind for record in read_events(result.events_path)]
    assert kinds == ["run_start", "checkpoint", "step", "eval", "run_end"]
    assert (result.folder / "config.toml").is_file()


def test_a_replica_with_other_bits_fails_the_run_by_name(run):
    run.all_ready()
    for rank in range(4):
        run.leave(rank, "done", **{**DONE, "state_hash": "other" if rank == 2 else "end"})
    result = run.result()
    assert (result.status, result.reason) == ("failed", "replicas west-0 hold other bits than the rest")
    assert not result.is_identical


def test_a_rank_that_fails_before_all_are_ready_ends_the_run_with_one_reason(run):
    run.leave(1, "failed", message="port 9 is taken", is_of_run=False)
    result = run.result()
    assert (result.status, result.reason) == ("failed", "rank 1 failed: port 9 is taken")
    assert [run.aborted[rank] for rank in (0, 2, 3)] == [["rank 1 failed: port 9 is taken"]] * 3


def test_the_run_goes_on_without_a_rank_that_is_lost(run):
    run.all_ready()
    run.lines[0].send("step_begin", step=1)
    run.event(0, "step", step=0, **STEP)
    run.lines[2].close()
    for rank in (0, 1, 3):
        run.event(
            rank,
            "members_changed",
            generation=2,
            step=1,
            groups=["east-0", "east-1", "west-1"],
            stalled_ns=rank,
        )
        run.event(rank, "step", step=1, **STEP)
        run.leave(rank, "done", **DONE)
    result = run.result()
    assert (result.status, result.reason) == ("finished", None)
    assert set(result.replica_hashes) == {"east-0", "east-1", "west-1"}
    (lost,) = events_of(result, "rank_lost")
    assert (lost.group, lost.cause) == ("west-0", "ended without a word")
    assert [event.stalled_ns for event in events_of(result, "members_changed")] == [0, 1, 3]
    assert [event.step for event in events_of(result, "step")] == [0, 1]
    assert run.aborted == [[], [], [], []]


def test_a_measurement_in_which_a_rank_is_lost_is_of_the_windows_there_are(run):
    run.all_ready()
    for rank in (0, 1, 3):
        run.lines[rank].send("held_out", step=0, shares={rank: [10.0 + rank, 10]})
    run.lines[2].close()
    for rank in (0, 1, 3):
        run.leave(rank, "done", **DONE)
    result = run.result()
    (measured,) = events_of(result, "eval")
    assert (measured.step, measured.windows, measured.loss) == (0, 30, 34 / 30)


def test_with_fewer_than_wanted_left_the_run_ends_and_says_so(tmp_path):
    run = FakeRun(tmp_path, AT_LEAST_THREE)
    run.all_ready()
    run.leave(3, "failed", message="MemoryError: ", is_of_run=False)
    run.leave(1, "left", how="left the run, as it was asked to")
    result = run.result()
    assert result.status == "failed"
    assert result.reason is not None
    assert result.reason.endswith("2 replica groups are left, run.min_groups = 3")
    assert len(run.aborted[0]) == len(run.aborted[2]) == 1


def test_when_nobody_is_left_the_last_cause_is_told(run):
    run.all_ready()
    for rank in range(4):
        run.leave(rank, "failed", message="MemoryError: ", is_of_run=False)
    result = run.result()
    assert result.status == "failed"
    assert str(result.reason).endswith(" failed: MemoryError: , and no replica group is left")


def test_a_failure_of_the_run_itself_is_told_once(run):
    run.all_ready()
    for rank in range(4):
        run.leave(rank, "failed", message="it has diverged", is_of_run=True)
    result = run.result()
    assert str(result.reason) in [f"rank {rank}: it has diverged" for rank in range(4)]
    assert events_of(result, "rank_lost") == []


def test_a_rank_that_was_not_back_at_the_end_is_no_replica_of_it(run):
    run.all_ready()
    for rank in range(4):
        run.leave(rank, "done", **({**DONE, "steps": 1, "state_hash": "old"} if rank == 0 else DONE))
    result = run.result()
    assert (result.status, result.steps) == ("finished", 3)
    assert set(result.replica_hashes) == {"east-1", "west-0", "west-1"}
    assert [event.cause for event in events_of(result, "rank_lost")] == ["was not back at the end"]


def test_a_stop_reaches_all_ranks_and_interrupts_the_run(run):
    run.all_ready()
    run.supervisor.request_stop()
    assert all(event.wait(10) for event in run.stopped)
    for rank in range(4):
        run.leave(rank, "done", **{**DONE, "is_interrupted": True})
    result = run.result()
    assert (result.status, result.reason, result.is_identical) == ("interrupted", "stopped by the user", True)


def test_a_second_stop_does_not_wait_for_the_step(run):
    run.all_ready()
    run.supervisor.request_stop()
    assert all(event.wait(10) for event in run.stopped)
    run.supervisor.request_stop()
    result = run.result()
    assert (result.status, result.reason) == ("interrupted", "stopped by the user")
    assert all(reasons == ["stopped by the user"] for reasons in run.aborted)


def test_a_stop_before_all_are_ready_ends_the_run(run):
    run.lines[0].send("ready", **READY)
    run.supervisor.request_stop()
    assert run.result().status == "interrupted"


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_starts(tmp_path):
    for taken in ("config.toml", "events.jsonl"):
        folder = tmp_path / taken.partition(".")[0]
        (folder / taken).mkdir(parents=True)
        with pytest.raises(ConfigError, match=f"^run.out: {folder} cannot be written to: "):
            Supervisor(CONFIG, CORPUS, folder)


def test_a_log_that_breaks_off_is_told_at_the_end(tmp_path):
    run = FakeRun(tmp_path)
    run.supervisor._log.failure = OSError(28, "No space left on device")
    run.all_ready()
    for rank in range(4):
        run.leave(rank, "done", **DONE)
    result = run.result()
    assert (result.status, result.log_failure) == ("finished", "No space left on device")
