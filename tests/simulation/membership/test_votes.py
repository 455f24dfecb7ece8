"""Never two histories: whatever order messages, deaths and certificates come in."""

import pytest

from farstep.membership import quorum
from farstep.membership.quorum import QuorumRule
from farstep.membership.round import Round
from tests.simulation.membership.votes import Votes

SEEDS = 2000
EVENTS = 50


def longest_history(seeds: range, *, num_members: int | None = None, events: int = EVENTS) -> int:
    longest = 0
    for seed in seeds:
        votes = Votes(seed, num_members=num_members)
        try:
            votes.run(events)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        longest = max(longest, len(votes.history.decided))
    return longest


def test_no_order_of_events_makes_two_histories():
    assert longest_history(range(SEEDS)) > 4


@pytest.mark.parametrize("num_members", [2, 4])
def test_half_of_the_members_may_go_on_with_certificates(num_members):
    assert longest_history(range(600), num_members=num_members) > 4


@pytest.mark.slow
def test_no_order_of_events_makes_two_histories_in_many_more():
    assert longest_history(range(10_000, 20_000), events=60) > 6


# What the check is worth: break one rule and see it fail.


def breaks(monkeypatch, rule_or_round, name, broken, *, seeds=SEEDS, num_members=None):
    monkeypatch.setattr(rule_or_round, name, broken)
    with pytest.raises(AssertionError, match="seed"):
        longest_history(range(seeds), num_members=num_members)


def test_check_finds_that_half_is_no_majority(monkeypatch):
    half = property(lambda self: max(1, len(self.voters) // 2))
    breaks(monkeypatch, QuorumRule, "num_needed", half)


def test_check_finds_that_the_dead_cannot_outvote_the_living(monkeypatch):
    def holds(self, living):
        answers = (self.voters & frozenset(living)) - self.certified
        return len(answers) >= 1 and len(answers) + len(self.certified) >= quorum.quorum_size(
            len(self.voters)
        )

    breaks(monkeypatch, QuorumRule, "holds", holds)


@pytest.mark.slow
def test_check_finds_that_a_certificate_must_come_before_the_question(monkeypatch):
    """Both halves die after they have answered, and each one's death is counted by the other."""
    votes_in_view: list[Votes] = []
    original = Votes.__init__

    def remember(self, *args, **kwargs):
        original(self, *args, **kwargs)
        votes_in_view[:] = [self]

    def is_decided(self):
        if self.accept_rule is None:
            return False
        late = frozenset(votes_in_view[0].dead) & self.base.voter_ids - self.accepts
        return QuorumRule(self.base.voter_ids, late).holds(self.accepts)

    monkeypatch.setattr(Votes, "__init__", remember)
    breaks(monkeypatch, Round, "is_decided", property(is_decided), seeds=20_000, num_members=2)


def test_check_finds_that_what_was_accepted_must_be_proposed_again(monkeypatch):
    original = Round.on_promise

    def forgetful(self, member_id, message):
        original(self, member_id, message.model_copy(update={"accepted": None}))

    breaks(monkeypatch, Round, "on_promise", forgetful)
