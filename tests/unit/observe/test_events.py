import json
import os
import threading
from pathlib import Path

import pytest

from farstep.observe.events import (
    EVENT_KINDS,
    Checkpoint,
    Eval,
    EventLog,
    EventLogError,
    FaultEvent,
    PathSample,
    PathState,
    Record,
    RunEnd,
    RunStart,
    Step,
    read_events,
    record_from_json,
)
from tests.unit.observe.fake_run import fake_run, with_loss


def a_step(step: int = 1) -> Step:
    return Step(step=step, loss=2.5, tokens=64, step_time_ns=1_000)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    with EventLog(path) as log:
        written = [
            log.emit(RunStart(config={"a": {"b": [1, 2]}}, text_sha256="ab" * 32)),
            log.emit(a_step(), rank=3),
            log.emit(PathSample(path="path 1", state=PathState.DENIED, tx_bytes_per_s=1.5), rank=0),
            log.emit(FaultEvent(action="applied", fault_id=0, fault="loss", target="plane 1", value=0.01)),
            log.emit(Eval(step=1, loss=2.25)),
            log.emit(RunEnd(status="finished", replica_hashes={"0": "aa", "1": "aa"})),
        ]
    found = read_events(path)
    assert found.records == written
    assert not found.is_truncated
    assert not found.unknown_kinds


def test_every_kind_survives_a_round_trip() -> None:
    records = with_loss(list(fake_run(num_steps=8, cut=(3, 5))), at_step=4)
    saved = Checkpoint(action="saved", step=4, path="checkpoints/step-4", bytes=99, stall_s=0.01, write_s=2.5)
    records.append(Record(7, "2026-03-01T12:00:00+00:00", None, saved))
    assert {record.event.kind for record in records} | {"eval"} == set(EVENT_KINDS)
    for record in records:
        assert record_from_json(record.to_json()) == record


def test_a_line_is_one_flat_object_that_begins_with_the_envelope() -> None:
    line = Record(5, "2026-03-01T12:00:00+00:00", None, a_step()).to_json()
    assert list(json.loads(line))[:4] == ["t_ns", "wall", "rank", "kind"]
    assert "\n" not in line


def test_a_loss_that_is_no_number_is_still_strict_json() -> None:
    line = Record(5, "", 0, Step(step=1, loss=float("nan"), tokens=1, step_time_ns=1)).to_json()
    content = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["loss"] == "NaN"
    record = record_from_json(line)
    assert record is not None
    assert isinstance(record.event, Step)
    assert record.event.loss != record.event.loss


def test_a_last_line_that_broke_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for step in range(1, 4):
            log.emit(a_step(step), rank=0)
    whole = path.read_bytes()
    last_begins = whole.rstrip(b"\n").rindex(b"\n") + 1
    for length in range(last_begins + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        found = read_events(path)
        assert found.is_truncated
        assert len(found) == 2


def test_a_broken_line_elsewhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = Record(5, "", 0, a_step()).to_json()
    path.write_text(f'{good}\n{{"t_ns": 1\n{good}\n')
    with pytest.raises(EventLogError, match=r"events\.jsonl, line 2: "):
        read_events(path)
    path.write_text(good.replace('"step":1', '"step":-1') + "\n" + good + "\n")
    with pytest.raises(EventLogError, match=r"line 1: step: .* \(found -1\)"):
        read_events(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[1]", "JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"wall": "", "rank": null, "kind": "step"}', "'t_ns' is missing"),
        ('{"t_ns": -1, "wall": "", "rank": null, "kind": "step"}', "t_ns must be"),
        ('{"t_ns": true, "wall": "", "rank": null, "kind": "step"}', "t_ns must be"),
        ('{"t_ns": 1, "wall": "", "rank": "a", "kind": "step"}', "rank must be"),
    ],
)
def test_a_bad_envelope_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        record_from_json(line)


def test_kinds_and_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    newer = Record(5, "", 0, a_step()).to_json()[:-1] + ', "colour": "blue"}'
    path.write_text(f'{newer}\n{{"t_ns": 6, "wall": "", "rank": null, "kind": "merge"}}\n')
    found = read_events(path)
    assert [record.event for record in found] == [a_step()]
    assert found.unknown_kinds == {"merge": 1}


def test_a_missing_file_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match=r"cannot read event log .*none\.jsonl: No such file"):
        read_events(tmp_path / "none.jsonl")


def test_an_existing_log_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).close()
    with pytest.raises(EventLogError, match="exists already"):
        EventLog(path)


def test_a_misspelt_field_is_refused_when_the_event_is_made() -> None:
    with pytest.raises(ValueError, match="los"):
        Step(step=1, los=2.5, loss=2.5, tokens=64, step_time_ns=1_000)  # type: ignore[call-arg]


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    heard: list[Record] = []
    with EventLog(path, listeners=[heard.append]) as log:

        def emit_many(rank: int) -> None:
            for step in range(200):
                log.emit(a_step(step), rank=rank)

        threads = [threading.Thread(target=emit_many, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = read_events(path)
    assert found.records == heard
    for rank in range(4):
        steps = [record.event.step for record in found if record.rank == rank]  # type: ignore[attr-defined]
        assert steps == list(range(200))


def test_time_counts_from_the_beginning_and_may_be_given() -> None:
    ticks = iter([1_000, 1_500, 3_000, 3_100])
    log = EventLog(None, clock_ns=lambda: next(ticks))
    assert log.start_ns == 1_000
    assert log.emit(a_step()).t_ns == 500
    assert log.emit(a_step(), at_ns=2_200).t_ns == 1_200
    assert log.emit(a_step(), at_ns=10).t_ns == 0


def test_only_the_process_that_opened_a_log_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EventLogError, match="belongs to process"):
            log.emit(a_step())


def test_a_full_disk_ends_the_log_and_nothing_else() -> None:
    class FullDisk:
        closed = False

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self.closed = True

    heard: list[Record] = []
    log = EventLog(None, listeners=[heard.append])
    log._file = FullDisk()  # type: ignore[assignment]
    with pytest.warns(RuntimeWarning, match="No space left"):
        log.emit(a_step(1))
    log.emit(a_step(2))
    log.close()
    assert len(heard) == 2
    assert log.failure is not None


def test_replicas_are_identical_only_if_all_hashes_are() -> None:
    assert RunEnd(status="finished", replica_hashes={"0": "a", "1": "a"}).bit_identical is True
    assert RunEnd(status="finished", replica_hashes={"0": "a", "1": "b"}).bit_identical is False
    assert RunEnd(status="finished", replica_hashes={"0": "a"}).bit_identical is None
