import pytest

from farstep.membership.quorum import QuorumRule, quorum_size


def rule(num_voters, certified="", dropped=""):
    voters = "abcdefgh"[:num_voters]
    return QuorumRule(frozenset(voters), frozenset(certified), frozenset(dropped))


@pytest.mark.parametrize(("num_voters", "size"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_quorum_is_more_than_half(num_voters, size):
    assert quorum_size(num_voters) == size
    voters = "abcdef"[:num_voters]
    assert rule(num_voters).holds(voters[:size])
    assert not rule(num_voters).holds(voters[: size - 1])


@pytest.mark.parametrize(
    ("num_voters", "certified", "living", "holds"),
    [
        (1, "a", "", False),
        (2, "b", "a", True),  # of two, the one that is left
        (2, "ab", "", False),
        (3, "c", "ab", True),
        (3, "bc", "a", False),  # b and c may have decided something before they died
        (4, "d", "abc", True),
        (4, "d", "ab", True),
        (4, "cd", "ab", True),
        (4, "d", "a", False),
        (4, "bcd", "a", False),
        (6, "ef", "abc", True),
        (6, "ef", "ab", False),
    ],
)
def test_certificates_let_half_of_the_voters_go_on_and_no_fewer(num_voters, certified, living, holds):
    assert rule(num_voters, certified).holds(living) is holds


def test_answer_of_somebody_certified_does_not_count_twice():
    assert not rule(4, "d").holds("ad")


def test_strangers_have_no_vote():
    assert not rule(3).holds("axyz")


@pytest.mark.parametrize(
    ("num_voters", "dropped", "living", "holds"),
    [
        (3, "bc", "a", True),
        (3, "b", "a", False),
        (5, "de", "ab", True),
        (2, "ab", "", False),
        (3, "a", "a", False),
    ],
)
def test_override_takes_voters_out_of_the_count(num_voters, dropped, living, holds):
    assert rule(num_voters, dropped=dropped).holds(living) is holds


@pytest.mark.parametrize("num_voters", range(1, 8))
def test_living_parts_of_two_quorums_meet_unless_each_saw_the_other_die(num_voters):
    """The proof in the module, over all pairs of quorums."""
    voters = "abcdefg"[:num_voters]
    quorums = []
    for mask in range(3**num_voters):
        digits = [(mask // 3**place) % 3 for place in range(num_voters)]
        living = {voter for voter, digit in zip(voters, digits, strict=True) if digit == 1}
        certified = {voter for voter, digit in zip(voters, digits, strict=True) if digit == 2}
        if QuorumRule(frozenset(voters), frozenset(certified)).holds(living):
            quorums.append((living, certified))
    for one, dead_one in quorums:
        for other, dead_other in quorums:
            # `dead_one` were dead before `one` answered, and the other way round.
            assert one & other or (dead_one & other and dead_other & one)


def test_why_a_certificate_must_come_before_the_question():
    """Counted afterwards, certificates would give two members two histories, one after the other's death.

    a accepts X and dies. b, told of that, accepts Y: decided by {b}, with a's certificate. b dies. Whoever
    had asked a for X would now find X decided by {a}, with b's certificate, although b was alive then.
    """
    asked_before = rule(2)
    assert not asked_before.holds("a")
    asked_after = rule(2, certified="a")
    assert asked_after.holds("b")
    assert rule(2, certified="b").holds("a")  # what a late certificate would have made of `asked_before`
