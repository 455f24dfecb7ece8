"""Members that end a run compare what they have come to."""

from __future__ import annotations

import threading
import time

import pytest

from farstep.membership import LocalHub, MembershipConfig
from farstep.train.elastic.farewell import compare_at_end


@pytest.mark.parametrize(("hashes", "differing"), [(("x", "x"), [[], []]), (("x", "y"), [["b"], ["a"]])])
def test_who_ends_at_the_same_time_sees_the_other(
    hashes: tuple[str, str], differing: list[list[str]]
) -> None:
    hub = LocalHub(MembershipConfig(groups=2, min_groups=1, settle_s=0.0))
    members = [hub.join(name) for name in ("a", "b")]
    found: dict[int, list[str]] = {}

    def end(index: int) -> None:
        generation = members[index].wait_generation(0, timeout_s=20)
        found[index] = compare_at_end(members[index], generation, step=7, lane=0, sha256=hashes[index])

    threads = [threading.Thread(target=end, args=(index,), daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    differs = hashes[0] != hashes[1]
    deadline_s = time.monotonic() + 20  # an event reaches the hub's log in a thread of its own
    while not (is_told := any(kind == "state_differs" for kind, _ in list(hub.events))) and differs:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    hub.close()
    assert [found[0], found[1]] == differing
    assert is_told == differs


def test_who_ends_later_sees_those_before() -> None:
    hub = LocalHub(MembershipConfig(groups=2, min_groups=1, settle_s=0.0))
    first, second = (hub.join(name) for name in ("a", "b"))
    generations = [member.wait_generation(0, timeout_s=20) for member in (first, second)]
    assert compare_at_end(first, generations[0], step=7, lane=0, sha256="x") == []
    assert compare_at_end(second, generations[1], step=7, lane=0, sha256="y") == ["a"]
    hub.close()
