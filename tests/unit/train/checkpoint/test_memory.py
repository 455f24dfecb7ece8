"""Shards in the memory of several members, each a thread with a communicator of its own."""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from farstep.collectives import Communicator, CommunicatorError, CommunicatorSettings
from farstep.engine import Endpoint
from farstep.testing.memory_engine import MemoryFabric, MemoryStore
from farstep.train.checkpoint.erasure import Bytes
from farstep.train.checkpoint.errors import CheckpointError, ShardsCorrupt, ShardsMissing
from farstep.train.checkpoint.memory import PeerMemory
from farstep.train.checkpoint.placement import Domain, Tolerance
from farstep.train.errors import ConfigError


def image_of(step: int, length: int = 10_000) -> Bytes:
    return np.random.default_rng(step).integers(0, 256, length, dtype=np.uint8)


class Member:
    """One member: its memory, and where it lives."""

    def __init__(self, number: int, scheme: str, site: str = "") -> None:
        self.memory = PeerMemory(scheme)
        self.domain = Domain(f"m{number}", site or "abc"[number % 3], f"host{number}")


class Group:
    """Members that call together; endpoints are made for every call, as after a membership change."""

    def __init__(self, transport: str = "memory") -> None:
        self.transport = transport
        self.numbers = itertools.count()

    def call(self, members: Sequence[Member], body: Callable[[Member, Communicator], Any]) -> list[Any]:
        """Returns what each member's body returned, or the error it raised."""
        results: list[Any] = [None] * len(members)
        store, name = MemoryStore(), f"memory/{next(self.numbers)}"
        with contextlib.ExitStack() as stack:
            if self.transport == "memory":
                fabric = stack.enter_context(MemoryFabric())
                endpoints = [fabric.endpoint(member.domain.name) for member in members]
            else:
                endpoints = [stack.enter_context(Endpoint(name=member.domain.name)) for member in members]

            def work(rank: int) -> None:
                with Communicator(
                    endpoints[rank],
                    rank=rank,
                    size=len(members),
                    store=store,
                    name=name,
                    settings=CommunicatorSettings(timeout_s=30),
                ) as communicator:
                    try:
                        results[rank] = body(members[rank], communicator)
                    except (CheckpointError, CommunicatorError) as error:
                        results[rank] = error
                    if communicator.failure is None:
                        communicator.barrier()

            threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(members))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "a member hangs"
        return results

    def protect(self, members: Sequence[Member], step: int, length: int = 10_000) -> list[Tolerance]:
        domains = [member.domain for member in members]
        return self.call(
            members,
            lambda member, communicator: member.memory.protect(
                communicator, domains, step, image_of(step, length), {"of": step}
            ),
        )

    def repair(self, members: Sequence[Member]) -> list[dict[int, Tolerance]]:
        domains = [member.domain for member in members]
        return self.call(members, lambda member, communicator: member.memory.repair(communicator, domains))

    def restore(self, members: Sequence[Member], **what: Any) -> list[Any]:
        return self.call(members, lambda member, communicator: member.memory.restore(communicator, **what))


def members_of(count: int, scheme: str = "3-of-5") -> list[Member]:
    return [Member(number, scheme) for number in range(count)]


@pytest.fixture
def group() -> Group:
    return Group()


def assert_restored(results: list[Any], step: int, length: int = 10_000) -> None:
    for restored in results:
        assert not isinstance(restored, Exception), restored
        assert restored.step == step
        assert restored.meta == {"of": step}
        assert restored.image.tobytes() == image_of(step, length).tobytes()


def test_any_two_of_five_may_be_lost(group: Group) -> None:
    for lost in itertools.combinations(range(5), 2):
        members = members_of(5)
        group.protect(members, 7)
        left = [member for number, member in enumerate(members) if number not in lost]
        assert_restored(group.restore(left), 7)


def test_three_of_five_take_less_than_1_7_times_the_memory(group: Group) -> None:
    members = members_of(5)
    survived = group.protect(members, 1, 100_000)
    assert sum(member.memory.length_bytes for member in members) <= 1.7 * 100_000
    assert {tolerance.members for tolerance in survived} == {2}


@pytest.mark.parametrize("transport", ["memory", "sockets"])
@pytest.mark.parametrize("scheme", ["3-of-5", "copies:2"])
def test_newcomers_get_the_whole_and_losses_are_made_good(transport: str, scheme: str) -> None:
    group = Group(transport)
    members = members_of(5, scheme)
    group.protect(members, 1, 1_000_001)
    left = [*members[1:4], Member(8, scheme), Member(9, scheme)]
    if scheme == "copies:2":
        left.insert(0, members[0])
    survived = group.repair(left)
    assert {tolerance[1].members for tolerance in survived} == {2 if scheme == "3-of-5" else 1}
    assert_restored(group.restore(left[-3:] if scheme == "3-of-5" else left[-2:] + left[:1]), 1, 1_000_001)


def test_repair_keeps_up_with_losses_one_after_another(group: Group) -> None:
    """Nine members, of whom two at a time leave and one joins, until none of the first is left."""
    generator, numbers = random.Random(3), itertools.count()
    members = [Member(next(numbers), "3-of-5") for _ in range(9)]
    first = list(members)
    group.protect(members, 5, 3001)
    while any(member in first for member in members):
        for member in generator.sample(members, 2):
            members.remove(member)
        while len(members) < 7:
            members.append(Member(next(numbers), "3-of-5"))
        generator.shuffle(members)
        survived = group.repair(members)
        assert {tolerance[5].members for tolerance in survived} == {2}
        held = [number for member in members for one in member.memory.held for number in one.shards]
        assert sorted(held) == [0, 1, 2, 3, 4]
    assert_restored(group.restore(members), 5, 3001)


def test_repair_with_fewer_members_than_shards(group: Group) -> None:
    members = members_of(5)
    group.protect(members, 5)
    left = members[2:]
    assert {tolerance[5].members for tolerance in group.repair(left)} == {1}
    assert_restored(group.restore(left[1:]), 5)


def test_members_whose_bytes_differ_store_nothing(group: Group) -> None:
    members = members_of(4)
    domains = [member.domain for member in members]

    def protect(member: Member, communicator: Communicator) -> Tolerance:
        step = 2 if member is members[2] else 1
        return member.memory.protect(communicator, domains, 1, image_of(step))

    for result in group.call(members, protect):
        assert isinstance(result, CheckpointError)
        assert "['m2'] hold other bytes than m0 at step 1" in str(result)
    assert all(member.memory.held == () for member in members)


@pytest.mark.parametrize("scheme", ["3-of-5", "copies:2"])
def test_bytes_that_one_member_alone_has_survive_its_loss(group: Group, scheme: str) -> None:
    members = members_of(6, scheme)
    domains = [member.domain for member in members]

    def protect(member: Member, communicator: Communicator) -> Tolerance:
        image = image_of(3) if communicator.rank == 4 else None
        return member.memory.protect_from(
            communicator, domains, 4, 3, image, {"of": 3} if image is not None else None
        )

    survived = group.call(members, protect)
    assert {tolerance.members for tolerance in survived} == {2 if scheme == "3-of-5" else 1}
    assert all(one.shards == {} for one in members[4].memory.held)
    left = members[:4] + members[5:]
    assert_restored(group.restore(left, owner="m4"), 3)
    (error, *_) = group.restore(left)
    assert isinstance(error, ShardsMissing)


def test_two_owners_do_not_meet(group: Group) -> None:
    members = members_of(4)
    domains = [member.domain for member in members]

    def protect(member: Member, communicator: Communicator) -> None:
        for owner in (0, 1):
            image = image_of(owner) if communicator.rank == owner else None
            member.memory.protect_from(communicator, domains, owner, 9, image)

    group.call(members, protect)
    for owner in (0, 1):
        (restored, *_) = group.restore(members, owner=f"m{owner}", step=9)
        assert restored.image.tobytes() == image_of(owner).tobytes()


def test_only_those_who_want_it_receive_it(group: Group) -> None:
    members = members_of(5)
    group.protect(members, 1)
    results = group.call(
        members,
        lambda member, communicator: member.memory.restore(communicator, is_wanted=communicator.rank == 2),
    )
    assert [restored is not None for restored in results] == [False, False, True, False, False]


def test_the_newest_that_can_be_rebuilt_is_taken_and_old_ones_go(group: Group) -> None:
    members = members_of(5)
    for step in (1, 2, 3):
        group.protect(members, step)
    assert [held.table.step for held in members[0].memory.held] == [2, 3]
    newest = [member.memory.held[-1] for member in members]
    for held in newest[:3]:
        held.shards.clear()  # too much of step 3 is lost
    assert_restored(group.restore(members), 2)
    (error, *_) = group.restore(members, step=3)
    assert isinstance(error, ShardsMissing)
    assert (
        "no memory checkpoint of step 3 can be rebuilt; shards left by step: {2: [0, 1, 2, 3, 4], 3: [3, 4]}"
        in str(error)
    )
    survived = group.repair(members)
    assert [sorted(tolerance) for tolerance in survived] == [[2]] * 5
    assert {held.table.step for member in members for held in member.memory.held} == {2}


def test_damaged_shards_are_neither_offered_nor_used(group: Group) -> None:
    members = members_of(5)
    group.protect(members, 1)
    for member in members[:2]:
        for shard in member.memory.held[0].shards.values():
            shard[17] ^= 4
    assert_restored(group.restore(members), 1)
    group.repair(members)
    assert_restored(group.restore(members[:3]), 1)


def test_a_shard_damaged_on_its_way_is_fetched_elsewhere(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members 0 and 1 send other bytes than they hold, which the network cannot know."""
    members = members_of(5)
    group.protect(members, 1)
    send = Communicator.send

    def send_wrong(self: Communicator, data: Bytes, peer: int, tag: int = 0, **how: Any) -> Any:
        if self.rank in (0, 1):
            data = data.copy()
            data[5] ^= 1
        return send(self, data, peer, tag, **how)

    monkeypatch.setattr(Communicator, "send", send_wrong)
    assert_restored(group.restore(members), 1)


def test_with_too_many_damaged_there_is_an_error_and_no_image(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = members_of(5)
    group.protect(members, 1)
    send = Communicator.send
    monkeypatch.setattr(
        Communicator, "send", lambda self, data, *where, **how: send(self, data ^ np.uint8(1), *where, **how)
    )
    for result in group.restore(members):
        assert isinstance(result, ShardsCorrupt | ShardsMissing)


def test_a_member_lost_in_the_middle_costs_nothing_that_was_stored(group: Group) -> None:
    members = members_of(5)
    group.protect(members, 1)
    domains = [member.domain for member in members]
    others: list[Communicator] = []
    are_waiting = threading.Barrier(5)

    def die(member: Member, communicator: Communicator) -> Any:
        communicator.barrier()
        if member is members[4]:
            are_waiting.wait(30)
            for other in others:  # as the membership does when it hears of a death
                other.abort("m4 was lost")
            communicator.abort("lost")
            return None
        others.append(communicator)
        are_waiting.wait(30)
        return member.memory.protect(communicator, domains, 2, image_of(2))

    results = group.call(members, die)
    assert all(isinstance(result, CommunicatorError) for result in results[:4])
    left = members[:4]
    group.repair(left)
    assert_restored(group.restore(left), 1)


def test_an_empty_image_is_an_image(group: Group) -> None:
    members = members_of(5)
    group.protect(members, 1, 0)
    assert_restored(group.restore(members[2:]), 1, 0)


def test_one_member_alone_has_no_peers(group: Group) -> None:
    (error,) = group.protect(members_of(1), 1)
    assert "nothing would survive its loss" in str(error)
    with pytest.raises(ConfigError, match="keep is 1"):
        PeerMemory(keep=1)


@pytest.mark.parametrize("having", [(0,), (0, 1), (1, 3)])
def test_members_without_the_state_hold_shards_of_it_all_the_same(having: tuple[int, ...]) -> None:
    group, members = Group(), [Member(number, "3-of-5") for number in range(5)]
    domains = [member.domain for member in members]

    def protect(member: Member, communicator: Communicator) -> Tolerance:
        image = image_of(7) if communicator.rank in having else None
        meta = {"of": 7} if image is not None else None
        return member.memory.protect(communicator, domains, 7, image, meta)

    (survived,) = set(group.call(members, protect))
    assert survived.members == 2
    assert [member.memory.newest_step for member in members] == [7] * 5
    left = [member for number, member in enumerate(members) if number not in having] + [Member(9, "3-of-5")]
    assert group.call(left, lambda member, line: member.memory.newest_whole(line)) == [7] * len(left)
    restored = group.restore(left)
    assert all(one.step == 7 and one.meta == {"of": 7} for one in restored)
    assert all(np.array_equal(one.image, image_of(7)) for one in restored)


def test_an_image_that_nobody_has_is_named() -> None:
    group, members = Group(), [Member(number, "copies:2") for number in range(2)]
    domains = [member.domain for member in members]
    errors = group.call(members, lambda member, line: member.memory.protect(line, domains, 3, None))
    assert all("no member has the image of step 3" in str(error) for error in errors)
    assert group.call(members, lambda member, line: member.memory.newest_whole(line)) == [None, None]
