import pytest

from farstep.membership.acceptor import Acceptor, TwoHistories
from farstep.membership.messages import Accept, AcceptedReply, Outdated, Prepare, Promise, Rejected
from farstep.membership.records import Ballot
from tests.unit.membership.people import generation, info

FIRST = generation("abc")
LOW, HIGH = Ballot(1, "c1"), Ballot(2, "c0")


def next_generation(seats="ab", *, base=FIRST, ballot=LOW):
    after = generation(seats, number=base.number + 1, previous=base.digest)
    return after.model_copy(update={"ballot": ballot})


@pytest.fixture
def acceptor():
    acceptor = Acceptor(info("a").member_id)
    assert acceptor.on_commit(FIRST)
    return acceptor


def test_promise_keeps_lower_ballots_out(acceptor):
    assert acceptor.on_prepare(Prepare(number=2, ballot=HIGH)) == Promise(number=2, ballot=HIGH)
    assert acceptor.on_prepare(Prepare(number=2, ballot=LOW)) == Rejected(number=2, ballot=LOW, promised=HIGH)
    refused = acceptor.on_accept(Accept(ballot=LOW, value=next_generation()))
    assert refused == Rejected(number=2, ballot=LOW, promised=HIGH)
    assert acceptor.accepted is None


def test_promise_tells_what_was_accepted(acceptor):
    value = next_generation()
    assert acceptor.on_accept(Accept(ballot=LOW, value=value)) == AcceptedReply(number=2, ballot=LOW)
    promise = acceptor.on_prepare(Prepare(number=2, ballot=HIGH))
    assert isinstance(promise, Promise)
    assert promise.accepted.value == value
    assert promise.accepted.ballot == LOW


def test_ballots_with_one_counter_are_ordered_by_proposer(acceptor):
    acceptor.on_prepare(Prepare(number=2, ballot=Ballot(1, "b")))
    assert isinstance(acceptor.on_prepare(Prepare(number=2, ballot=Ballot(1, "a"))), Rejected)
    assert isinstance(acceptor.on_prepare(Prepare(number=2, ballot=Ballot(1, "b"))), Promise)


def test_commit_clears_promises_and_answers_late_questions_with_the_generation(acceptor):
    value = next_generation()
    acceptor.on_prepare(Prepare(number=2, ballot=HIGH))
    assert acceptor.on_commit(value)
    assert acceptor.promised is None
    assert acceptor.on_prepare(Prepare(number=2, ballot=HIGH)) == Outdated(generation=value)
    assert not acceptor.on_commit(value)
    assert not acceptor.on_commit(FIRST)


def test_nobody_votes_on_what_does_not_follow_its_own_generation(acceptor):
    other_past = next_generation(base=generation("abd"))
    assert acceptor.on_accept(Accept(ballot=LOW, value=other_past)) is None
    assert acceptor.on_prepare(Prepare(number=3, ballot=LOW)) is None
    assert acceptor.promised is None


def test_only_members_of_the_generation_before_vote():
    outsider = Acceptor(info("x").member_id)
    assert outsider.on_prepare(Prepare(number=2, ballot=LOW)) is None
    outsider.on_commit(FIRST)
    assert outsider.on_prepare(Prepare(number=2, ballot=LOW)) is None
    assert outsider.on_accept(Accept(ballot=LOW, value=next_generation())) is None


def test_second_generation_of_one_number_is_never_adopted(acceptor):
    acceptor.on_commit(next_generation("ab"))
    with pytest.raises(TwoHistories, match="two generations 2"):
        acceptor.on_commit(next_generation("ac"))
    assert acceptor.generation == next_generation("ab")


def test_generations_of_other_runs_are_none_of_its_business(acceptor):
    other = next_generation().model_copy(update={"run_id": "run/0000beef"})
    assert not acceptor.on_commit(other)
    assert acceptor.generation == FIRST
