"""The coordinator's event log: what is kept, who follows, and what a broken disk does to it."""

import asyncio
import json
import math
import os

import pytest

from farstep.coordinator import journal as module
from farstep.coordinator.guard import Refusals
from farstep.coordinator.journal import Journal
from farstep.membership.effects import Note


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_note_becomes_a_line_with_the_fixed_keys(tmp_path):
    path = tmp_path / "new" / "events.jsonl"
    clock = iter([1_000_000_000, 3_500_000_000])
    journal = Journal(path, now_ns=lambda: next(clock))
    journal.note(Note("member_joined", {"site": "a"}, "a-0", age_ns=500_000_000))
    (line,) = lines_of(path)
    assert list(line) == ["id", "t_ns", "wall", "rank", "kind", "member", "site"]
    assert (line["id"], line["t_ns"], line["rank"], line["kind"]) == (1, 2_000_000_000, None, "member_joined")


def test_what_happened_before_the_start_has_time_zero():
    journal = Journal(now_ns=lambda: 5)
    assert journal.add("late", {}, age_ns=10**12)["t_ns"] == 0


def test_fields_that_are_called_like_fixed_keys_are_kept_apart():
    line = Journal().add("x", {"kind": "y", "id": 7, "member": "z"}, member="a-0")
    assert (line["kind"], line["kind_"], line["id_"], line["member"], line["member_"]) == (
        "x",
        "y",
        7,
        "a-0",
        "z",
    )


def test_lines_are_strict_json(tmp_path):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    fields = {"a": math.nan, "b": [math.inf, -math.inf], "c": {"d": math.nan}, "e": "\ud800", "f": path}
    journal.add("odd", fields)

    def refuse(name):
        raise AssertionError(name)

    line = json.loads(path.read_text(), parse_constant=refuse)
    assert (line["a"], line["b"], line["c"]) == ("NaN", ["Infinity", "-Infinity"], {"d": "NaN"})
    assert line["e"] == "?"
    assert line["f"] == str(path)
    assert journal.since(0) == [line]


def test_a_log_is_continued_and_a_broken_last_line_ended(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "old"}\n{"kind": "bro')
    journal = Journal(path)
    journal.add("new", {})
    first, broken, new = path.read_text().splitlines()
    assert (first, broken) == ('{"kind": "old"}', '{"kind": "bro')
    assert json.loads(new)["kind"] == "new"


def test_only_so_many_lines_and_characters_are_kept(monkeypatch):
    monkeypatch.setattr(module, "KEPT_LINES", 5)
    journal = Journal()
    for number in range(8):
        journal.add("n", {"number": number})
    assert [line["number"] for line in journal.since(0)] == [3, 4, 5, 6, 7]
    monkeypatch.setattr(module, "KEPT_CHARACTERS", 1000)
    journal.add("big", {"text": "x" * 5000})
    assert [line["kind"] for line in journal.since(0)] == ["big"]
    journal.add("n", {"number": 9})
    assert [line["kind"] for line in journal.since(0)] == ["n"]


def test_since_is_bounded_and_filtered():
    journal = Journal()
    for number in range(6):
        journal.add("even" if number % 2 == 0 else "odd", {"number": number})
    assert [line["number"] for line in journal.since(3)] == [3, 4, 5]
    assert [line["number"] for line in journal.since(0, limit=2)] == [4, 5]
    assert [line["number"] for line in journal.since(0, kinds=frozenset({"odd"}), limit=2)] == [3, 5]
    assert journal.since(6) == []


def test_samples_are_for_the_file_alone(tmp_path):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.sample("progress", {"step": 1, "loss": math.nan})
    (line,) = lines_of(path)
    assert list(line) == ["t_ns", "wall", "rank", "kind", "step", "loss"]
    assert (line["kind"], line["loss"]) == ("progress", "NaN")
    assert journal.since(0) == []
    Journal().sample("progress", {"step": 1})


def test_a_full_disk_stops_nothing_and_is_told_afterwards(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.add("before", {})
    write, room = os.write, [0]

    def scarce(descriptor, content):
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        taken = content[: room[0]]
        room[0] -= len(taken)
        return write(descriptor, taken)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", scarce)
        journal.add("lost", {"number": 1})
        room[0] = 20  # enough for a part of a line
        journal.add("lost", {"number": 2})
        journal.add("lost", {"number": 3})
    assert journal.num_unwritten == 3
    journal.add("after", {})
    assert journal.num_unwritten == 0
    whole = []
    for text in path.read_text().splitlines():
        try:
            whole.append(json.loads(text))
        except ValueError:
            assert text.startswith('{"t_ns"')  # the part that fitted
    assert [line["kind"] for line in whole] == ["before", "log_gap", "after"]
    assert whole[1]["lines"] == 3
    assert [line["kind"] for line in journal.since(0)] == ["before", "lost", "lost", "lost", "after"]


def test_two_logs_of_one_file_leave_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    one, other = Journal(path), Journal(path)
    assert (one.is_shared, other.is_shared) == (False, True)
    for number in range(50):
        one.add("one", {"number": number})
        other.add("other", {"text": "x" * 3000})
    assert len(lines_of(path)) == 100
    one.close()
    other.close()
    assert not Journal(path).is_shared


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Journal(tmp_path / "file" / "events.jsonl")


async def collect(journal, last_id, count):
    found = []
    async for line in journal.follow(last_id):
        found.append(line and line["kind"])
        if len(found) == count:
            break
    return found


def test_a_follower_gets_what_was_and_what_comes():
    async def play():
        journal = Journal()
        journal.add("a", {})
        journal.add("b", {})
        follower = asyncio.create_task(collect(journal, 1, 3))
        await asyncio.sleep(0)
        journal.add("c", {})
        await asyncio.sleep(0)
        journal.add("d", {})
        return await asyncio.wait_for(follower, 5)

    assert asyncio.run(play()) == ["b", "c", "d"]


def test_a_follower_of_another_coordinator_begins_with_the_oldest():
    async def play():
        journal = Journal()
        journal.add("a", {})
        return await asyncio.wait_for(collect(journal, 999, 1), 5)

    assert asyncio.run(play()) == ["a"]


def test_silence_is_told_to_followers(monkeypatch):
    monkeypatch.setattr(module, "SIGN_OF_LIFE_S", 0.01)
    assert asyncio.run(asyncio.wait_for(collect(Journal(), 0, 2), 5)) == [None, None]


def test_closing_sends_followers_home():
    async def play():
        journal = Journal()
        follower = asyncio.create_task(collect(journal, 0, 1))
        await asyncio.sleep(0)
        journal.add("last", {})
        other = asyncio.create_task(collect(journal, 0, 2))
        await asyncio.sleep(0)
        journal.close()
        return await asyncio.wait_for(asyncio.gather(follower, other), 5)

    assert asyncio.run(play()) == [["last"], ["last"]]


def test_too_many_followers_are_sent_home(monkeypatch):
    monkeypatch.setattr(module, "FOLLOWERS_MAX", 1)

    async def play():
        journal = Journal()
        first = asyncio.create_task(collect(journal, 0, 1))
        await asyncio.sleep(0)
        second = await asyncio.wait_for(collect(journal, 0, 1), 5)
        journal.close()
        return await first, second

    assert asyncio.run(play()) == ([], [])


def test_handshakes_that_fail_over_and_over_are_noted_once_in_a_while():
    clock = [0.0]
    journal = Journal()
    refusals = Refusals(journal, now_s=lambda: clock[0])
    for _ in range(100):
        refusals.note("it has no certificate")
    clock[0] = 11.0
    refusals.note("it has no certificate")
    for number in range(1_000):  # whoever connects must not fill the log
        refusals.note(f"odd {number} " + "x" * 10_000)
    lines = journal.since(0)
    told = [line["times"] for line in lines if line["reason"] == "it has no certificate"]
    assert told == [1, 100]
    assert len(lines) < 40
    assert all(len(line["reason"]) <= 200 for line in lines)
