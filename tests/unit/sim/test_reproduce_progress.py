"""A line before each experiment: how many there are, and how long the rest may take."""

from farstep.sim.reproduce.progress import announced, time_left


def test_each_item_is_announced_before_it_is_run():
    told: list[str] = []
    heard = [(item, len(told)) for item in announced(["a", "b", "c"], told.append, str.upper)]
    assert heard == [("a", 1), ("b", 2), ("c", 3)]
    assert told == ["1 of 3: A", "2 of 3: B", "3 of 3: C"]


def test_the_time_left_is_told_by_what_was_done():
    told: list[str] = []
    assert list(announced([1.0, 2.0, 3.0], told.append, str, float)) == [1.0, 2.0, 3.0]
    assert told[0] == "1 of 3: 1.0"
    assert told[1].startswith("2 of 3, about ")
    assert time_left(5.0) == ", about 5 s left"
    assert time_left(0.0) == ", about 1 s left"
    assert time_left(600.0) == ", about 10 min left"


def test_nothing_is_said_to_nobody():
    assert list(announced([1, 2], None, str)) == [1, 2]
