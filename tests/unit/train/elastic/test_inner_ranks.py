"""Ranks of one replica group: joint decisions, relayed membership, and what happens when one is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from farstep.membership import Evicted, LocalHub, MembershipConfig, MembershipTimeout
from farstep.train.elastic import inner as inner_module
from farstep.train.elastic.inner import TogetherInside
from farstep.train.elastic.relay import MembershipRelay, RelayedMembership, RelayState
from farstep.train.elastic.seams import InnerRankLost
from farstep.train.environment import Rendezvous


def meet(size: int) -> list[TogetherInside]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    rendezvous = Rendezvous(host="127.0.0.1", port=port, prefix="test")
    found: list[Any] = [None] * size

    def join(rank: int) -> None:
        found[rank] = TogetherInside(rendezvous, rank, size)

    together([lambda rank=rank: join(rank) for rank in range(size)])
    return found


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def body(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=body, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_module, "GIVE_UP_S", 1e6)


def test_all_ranks_get_all_rows() -> None:
    ranks = meet(3)
    rows = together([lambda rank=rank: rank.gather([rank.rank, 0.5]) for rank in ranks])
    assert rows == [[[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]] * 3
    for rank in ranks:
        rank.close()


def test_a_lost_rank_ends_every_wait() -> None:
    ranks = meet(2)
    told: list[str] = []
    ranks[0].on_lost = told.append
    ranks[1].lines[0]._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does when a process dies
    with pytest.raises(InnerRankLost, match="rank 1"):
        ranks[0].gather([1.0])
    until(lambda: bool(told))
    assert "rank 1" in told[0]
    for rank in ranks:
        rank.close()


def test_a_rank_that_is_through_is_not_lost() -> None:
    ranks = meet(2)
    told: list[str] = []
    ranks[0].on_lost = told.append
    ranks[1].close()
    time.sleep(0.1)
    ranks[0].close()
    assert told == []


def test_the_other_ranks_see_generations_store_and_eviction() -> None:
    ranks = meet(2)
    with LocalHub(MembershipConfig(groups=2, settle_s=0.0)) as hub:
        relay = MembershipRelay(ranks[0])
        group = hub.join("a-0")
        first = relay.wrap(group)
        state = RelayState(ranks[1])
        second = RelayedMembership(ranks[1], state)
        assert second.member == first.member
        with pytest.raises(MembershipTimeout):
            second.wait_generation(0, timeout_s=0.05)
        other = hub.join("b-0")
        generation = first.wait_generation(0, timeout_s=5)
        assert second.wait_generation(0, timeout_s=5) == generation

        heard: list[int] = []
        second.on_generation(lambda new: heard.append(new.number))
        other.store("g1").set("key", b"from the other group")
        assert second.store("g1", 1).get("key", 5.0) == b"from the other group"
        second.store("g1", 1).set("back", b"from rank 1")
        assert other.store("g1").get("back", 5.0) == b"from rank 1"
        with pytest.raises(TimeoutError):
            second.store("g1", 1).get("nothing", 0.05)

        first.leave("enough")
        with pytest.raises(Evicted) as caught:
            first.wait_generation(1, timeout_s=5)
        assert caught.value.was_asked
        with pytest.raises(Evicted) as caught:
            second.wait_generation(1, timeout_s=5)
        assert caught.value.was_asked
        until(lambda: heard == [2])  # callbacks come after those who wait were woken
        other.close()
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("who", ["operator", "rank 0", "rank 1"])
def test_all_ranks_hear_that_their_group_is_to_leave(who: str) -> None:
    ranks = meet(2)
    with LocalHub(MembershipConfig(groups=1, settle_s=0.0)) as hub:
        hub.join("a-0").wait_generation(0, timeout_s=5)
        relay = MembershipRelay(ranks[0])
        first = relay.wrap(hub.join("b-0"))
        second = RelayedMembership(ranks[1], RelayState(ranks[1]))
        heard: list[tuple[int, str]] = []
        first.on_drain(lambda reason: heard.append((0, reason)))
        second.on_drain(lambda reason: heard.append((1, reason)))
        expected = {(0, "notice"), (1, "notice")}
        if who == "operator":
            until(lambda: bool(first.is_connected))
            hub.command(lambda proposer, now_ns: proposer.drain("b-0", "notice", now_ns))
        elif who == "rank 0":
            first.leave("notice")
            expected = {(1, "notice")}  # rank 0 knows
        else:
            second.leave("notice")
        until(lambda: expected <= set(heard))
        late: list[str] = []
        second.on_drain(late.append)
        assert late == ["notice"]
    for rank in ranks:
        rank.close()


class Lamp:
    """Shows a training thread that is stuck, or not."""

    def __init__(self) -> None:
        self.value: int | None = None

    def stuck_ns(self, now_ns: int) -> int | None:
        return self.value


def test_a_group_is_stuck_if_one_of_its_ranks_is() -> None:
    ranks = meet(2)
    with LocalHub(MembershipConfig(groups=1, settle_s=0.0)) as hub:
        relay = MembershipRelay(ranks[0])
        first = relay.wrap(hub.join("a-0"))
        second = RelayedMembership(ranks[1], RelayState(ranks[1]))
        lamps = Lamp(), Lamp()
        first.watch(lamps[0])
        second.watch(lamps[1])

        def stuck_ns() -> int | None:
            people = hub.command(lambda proposer, now_ns: proposer.people())
            return people[0].stuck_ns if people else None

        lamps[1].value = 7
        until(lambda: stuck_ns() == 7)
        lamps[0].value = 9
        until(lambda: stuck_ns() == 9)
        lamps[0].value = lamps[1].value = None
        until(lambda: stuck_ns() is None)
        second.close()
    for rank in ranks:
        rank.close()


def test_a_group_is_ready_once_all_its_ranks_are() -> None:
    ranks = meet(2)
    with LocalHub(MembershipConfig(groups=1, settle_s=0.0)) as hub:
        hub.join("a-0").wait_generation(0, timeout_s=5)
        relay = MembershipRelay(ranks[0])
        group = hub.join("b-0")
        first = relay.wrap(group)
        second = RelayedMembership(ranks[1], RelayState(ranks[1]))
        first.announce_ready(5)
        with pytest.raises(MembershipTimeout):
            group.wait_generation(0, timeout_s=0.3)
        second.announce_ready(5)
        assert "b-0" in group.wait_generation(0, timeout_s=5).describe()
    for rank in ranks:
        rank.close()
