"""All replicas apply a step or none does; ranks are threads here, joined by memory."""

import threading
from collections.abc import Callable

import pytest
import torch

from farstep.train.buckets import Bucket
from farstep.train.policies.synchronous import Decision, SynchronousPolicy


class Meeting:
    """An all-reduce among threads that adds in rank order."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.tensors: list[torch.Tensor | None] = [None] * num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=10)

    def member(self, rank: int) -> "Member":
        return Member(self, rank)


class Member:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.num_ranks = meeting, rank, meeting.num_ranks
        self.fails_with: Exception | None = None

    def all_reduce(self, tensor: torch.Tensor, op: str, *, background: bool = False) -> "Operation":
        operation = Operation(lambda: self._reduce(tensor, op))
        if not background:
            operation.wait()
        return operation

    def _reduce(self, tensor: torch.Tensor, op: str) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        self.meeting.tensors[self.rank] = tensor.clone()
        self.meeting.barrier.wait()
        stacked = torch.stack([part for part in self.meeting.tensors if part is not None])
        self.meeting.barrier.wait()
        tensor.copy_({"min": stacked.amin, "sum": stacked.sum, "mean": stacked.mean}[op](0))

    def abort(self, reason: str) -> None:
        self.meeting.barrier.abort()


class Operation:
    """Is carried out when it is waited for, which is as late as may be."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.wait = work


def on_all(num_ranks: int, work: Callable[[SynchronousPolicy, int], object]) -> list[object]:
    meeting = Meeting(num_ranks)
    results: list[object] = [None] * num_ranks

    def run(rank: int) -> None:
        results[rank] = work(SynchronousPolicy(meeting.member(rank)), rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


@pytest.mark.parametrize(
    ("votes", "decision"),
    [
        ([(True, True)] * 3, Decision(is_committed=True, goes_on=True)),
        ([(True, True), (False, True), (True, True)], Decision(is_committed=False, goes_on=True)),
        ([(True, True), (True, False), (True, True)], Decision(is_committed=True, goes_on=False)),
        ([(False, False), (True, True), (True, True)], Decision(is_committed=False, goes_on=False)),
    ],
)
def test_one_refusal_keeps_all_from_applying_and_one_wish_to_stop_stops_all(votes, decision):
    def vote(policy: SynchronousPolicy, rank: int) -> Decision:
        return policy.vote(may_apply=votes[rank][0], goes_on=votes[rank][1])

    assert on_all(3, vote) == [decision] * 3


def test_a_wish_to_stop_outlives_a_refused_step():
    def vote_twice(policy: SynchronousPolicy, rank: int) -> list[Decision]:
        wishes_to_stop = rank == 0
        first = policy.vote(may_apply=rank != 1, goes_on=not wishes_to_stop)
        return [first, policy.vote(may_apply=True, goes_on=not wishes_to_stop)]

    for first, second in on_all(2, vote_twice):
        assert first == Decision(is_committed=False, goes_on=True)
        assert second == Decision(is_committed=True, goes_on=False)


def test_buckets_become_the_mean_over_all_ranks():
    def reduce(policy: SynchronousPolicy, rank: int) -> list[torch.Tensor]:
        buckets = [
            Bucket(index=i, flat=torch.full((3,), float(rank + i)), num_parameters=1) for i in range(4)
        ]
        for bucket in buckets:
            policy.bucket_ready(bucket)
        assert policy.wait() >= 0
        return [bucket.flat for bucket in buckets]

    for flats in on_all(2, reduce):
        assert [flat.tolist() for flat in flats] == [[i + 0.5] * 3 for i in range(4)]


def test_a_failure_of_the_network_is_raised_where_the_step_waits():
    member = Meeting(1).member(0)
    member.fails_with = ConnectionError("no way to rank 1")
    policy = SynchronousPolicy(member)
    policy.bucket_ready(Bucket(index=0, flat=torch.zeros(1), num_parameters=1))
    with pytest.raises(ConnectionError, match="no way to rank 1"):
        policy.wait()
