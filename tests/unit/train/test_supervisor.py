"""What the supervisor makes of what its ranks say; the ranks here are lines without a process."""

import threading
from pathlib import Path

import numpy as np
import pytest

from farstep.observe.events import read_events
from farstep.train.config import NetworkConfig, RunConfig, RunSection
from farstep.train.control import ControlClient, Severity
from farstep.train.data import Corpus
from farstep.train.errors import ConfigError
from farstep.train.result import RunResult
from farstep.train.supervisor import Supervisor

CONFIG = RunConfig(run=RunSection(steps=3), network=NetworkConfig(emulate=False))
CORPUS = Corpus(name="text", sha256="0" * 64, train=np.zeros(1, np.uint8), held_out=np.zeros(1, np.uint8))
READY = {"num_parameters": 1, "gradient_bytes": 4, "torch_version": "2", "state_hash": "start"}
DONE = {"steps": 3, "is_interrupted": False, "final_loss": 1.0, "held_out_loss": 2.0, "state_hash": "end"}


class FakeRun:
    """A supervisor and the lines of four ranks."""

    def __init__(self, folder: Path) -> None:
        self.supervisor = Supervisor(CONFIG, CORPUS, folder)
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
            line.send("ready", **READY)
        for line in self.lines:
            assert line.wait_answer(10)["kind"] == "go"

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


def test_a_run_is_finished_when_all_ranks_have_ended_with_the_same_bits(run):
    run.all_ready()
    fields = {"step": 0, "loss": 5.0, "tokens": 8, "step_time_ns": 9, "allreduce_ns": 1}
    run.lines[0].send("event", event="step", is_shared=True, at_ns=None, fields=fields)
    for rank in range(4):
        run.leave(rank, "done", **DONE)
    result = run.result()
    assert (result.status, result.reason, result.steps, result.held_out_loss) == ("finished", None, 3, 2.0)
    assert result.replica_hashes == dict.fromkeys(("east/0", "east/1", "west/0", "west/1"), "end")
    assert result.is_identical
    kinds = [record.event.kind for record in read_events(result.events_path)]
    assert kinds == ["run_start", "step", "run_end"]
    assert (result.folder / "config.toml").is_file()


def test_a_replica_with_other_bits_fails_the_run_by_name(run):
    run.all_ready()
    for rank in range(4):
        run.leave(rank, "done", **{**DONE, "state_hash": "other" if rank == 2 else "end"})
    result = run.result()
    assert (result.status, result.reason) == ("failed", "replicas west/0 hold other bits than the rest")
    assert not result.is_identical


def test_ranks_that_would_begin_differently_are_not_started(run):
    for rank, line in enumerate(run.lines):
        line.send("ready", **{**READY, "state_hash": "other" if rank == 1 else "start"})
    assert run.result().reason == "ranks 1 would begin from other parameters than the rest"
    assert [len(reasons) for reasons in run.aborted] == [1, 1, 1, 1]


def test_the_cause_is_told_from_its_consequences_whatever_came_first(run):
    run.all_ready()
    run.leave(0, "failed", message="the peer gave it up", severity=Severity.ABORTED)
    run.leave(1, "failed", message="no path answers", severity=Severity.UNREACHABLE)
    run.leave(3, "failed", message="the peer gave it up", severity=Severity.ABORTED)
    result = run.result()
    assert (result.status, result.reason) == ("failed", "rank 1: no path answers")
    assert run.aborted[2] == ["rank 1: no path answers"]


def test_a_rank_that_ends_without_a_word_is_the_cause(run):
    run.all_ready()
    run.leave(0, "failed", message="no path answers", severity=Severity.UNREACHABLE)
    run.lines[2].close()
    assert run.result().reason == "rank 2 ended without a word"
    assert run.aborted[1] == run.aborted[3] == ["rank 2 ended without a word"]


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
