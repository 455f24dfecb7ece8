import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.train.errors import ConfigError
from farstep.train.ledger import CommitRecord, Deal, LedgerError, Range, SampleLedger
from tests.unit.train.ledger.oracle import PlainLedger

SEATS = st.integers(1, 9)


@st.composite
def ledgers(draw: st.DrawFn, *, drop_last: bool | None = None) -> dict:
    return {
        "num_samples": draw(st.integers(1, 60)),
        "batch_size": draw(st.integers(1, 20)),
        "seed": draw(st.integers(0, 2**64)),
        "batch": draw(st.sampled_from(["global", "per_group"])),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()) if drop_last is None else drop_last,
    }


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple]:
    """What befalls a run: steps that commit, wholly or in part, and that fail; restarts; joins."""
    one = st.one_of(
        st.tuples(st.just("commit"), SEATS, st.none() | st.integers(0, 2**9)),
        st.tuples(st.just("fail"), SEATS, st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
        st.tuples(st.just("checkpoint"), st.none(), st.none()),
        st.tuples(st.just("go back"), st.none(), st.none()),
        st.tuples(st.just("join"), st.none(), st.none()),
    )
    return draw(st.lists(one, max_size=60))


def contributors(seats: int, bits: int | None) -> list[int] | None:
    """At least one seat, chosen by the bits."""
    if bits is None:
        return None
    return [seat for seat in range(seats) if bits >> seat & 1] or [bits % seats]


def samples(ledger: SampleLedger, deal: Deal) -> list[list[int]]:
    return [ledger.indices(deal, seat).tolist() for seat in range(deal.seats)]


class Members:
    """Ledgers of the members of one run, which must never differ, and the samples it used."""

    def __init__(self, **rules) -> None:
        self.rules = rules
        self.ledgers = [SampleLedger(**rules)]
        self.log: list[CommitRecord] = []
        self.used: list[tuple[int, list[int]]] = []
        self.saved = (self.ledgers[0].state(), 0)

    def commit(self, seats: int, bits: int | None, shares: list[int] | None = None) -> None:
        deal = self.ledgers[0].deal(seats, shares)
        contributed = contributors(seats, bits)
        dealt = samples(self.ledgers[0], deal)
        taken = [sample for seat in contributed or range(seats) for sample in dealt[seat]]
        record = self.ledgers[0].commit(deal, contributed)
        for other in self.ledgers[1:]:
            other.replay(json.loads(json.dumps(record.to_json())))
        self.log.append(record)
        self.used.append((deal.epoch, taken))

    def happen(self, what: str, seats: int | None, bits: int | None) -> None:
        match what:
            case "commit":
                self.commit(seats, bits)
            case "fail":
                before = self.ledgers[0].state()
                self.ledgers[0].deal(seats)
                assert self.ledgers[0].state() == before
            case "restart":  # every member is new and starts from the state that was kept
                self.ledgers = [self.loaded(self.ledgers[0].state())]
            case "checkpoint":
                self.saved = (self.ledgers[0].state(), len(self.log))
            case "go back":  # all members died: what came after the checkpoint never happened
                self.ledgers = [self.loaded(self.saved[0])]
                self.log, self.used = self.log[: self.saved[1]], self.used[: self.saved[1]]
            case "join":
                self.ledgers = [*self.ledgers[-2:], self.loaded(self.ledgers[0].state())]
        assert len({ledger.digest() for ledger in self.ledgers}) == 1

    def loaded(self, state: dict) -> SampleLedger:
        ledger = SampleLedger(**self.rules)
        ledger.load_state(json.loads(json.dumps(state)))
        return ledger

    def finish_epoch(self) -> None:
        epoch = self.ledgers[0].epoch
        while self.ledgers[0].epoch == epoch:
            self.commit(3, None)


@settings(max_examples=300, deadline=None)
@given(rules=ledgers(drop_last=False), history=happenings())
def test_every_sample_of_an_epoch_is_used_exactly_once(rules: dict, history: list[tuple]) -> None:
    members = Members(**rules)
    for event in history:
        members.happen(*event)
    members.finish_epoch()
    by_epoch: dict[int, Counter[int]] = {}
    for epoch, taken in members.used:
        by_epoch.setdefault(epoch, Counter()).update(taken)
    once = Counter(range(rules["num_samples"]))
    assert list(by_epoch) == list(range(len(by_epoch)))  # one after another, none left out
    assert all(counts == once for counts in by_epoch.values())
    assert members.ledgers[0].used == sum(len(taken) for _, taken in members.used)


@settings(max_examples=200, deadline=None)
@given(rules=ledgers(drop_last=True), history=happenings())
def test_a_dropped_tail_is_all_that_an_epoch_may_miss(rules: dict, history: list[tuple]) -> None:
    members = Members(**rules)
    for event in history:
        members.happen(*event)
    members.finish_epoch()
    by_epoch: dict[int, Counter[int]] = {}
    for epoch, taken in members.used:
        by_epoch.setdefault(epoch, Counter()).update(taken)
    seats_max = 9 if rules["batch"] == "per_group" else 1
    for epoch, counts in by_epoch.items():
        assert max(counts.values(), default=1) == 1
        if epoch < members.ledgers[0].epoch:
            missing = rules["num_samples"] - counts.total()
            assert missing < rules["batch_size"] * seats_max


@settings(max_examples=300, deadline=None)
@given(rules=ledgers(), history=happenings(), share_seed=st.integers(0, 2**32))
def test_it_deals_what_the_plain_rules_say(rules: dict, history: list[tuple], share_seed: int) -> None:
    ledger = SampleLedger(**rules)
    plain = PlainLedger(
        rules["num_samples"],
        rules["batch_size"],
        seed=rules["seed"],
        per_group=rules["batch"] == "per_group",
        shuffle=rules["shuffle"],
        drop_last=rules["drop_last"],
    )
    for number, (what, seats, bits) in enumerate(history):
        if what not in ("commit", "fail"):
            continue
        shares = None
        if (share_seed >> number % 32) & 1:
            shares = [1 + (share_seed >> seat) % 5 for seat in range(seats)]
        deal = ledger.deal(seats, shares)
        epoch, dealt = plain.deal(seats, shares)
        assert (deal.epoch, samples(ledger, deal)) == (epoch, dealt)
        assert deal.counts == tuple(len(part) for part in dealt)
        assert sum(deal.weight(seat) for seat in range(seats)) == pytest.approx(1)
        if what == "commit":
            chosen = contributors(seats, bits)
            ledger.commit(deal, chosen)
            plain.commit(epoch, [sample for seat in chosen or range(seats) for sample in dealt[seat]])
            assert ledger.remaining == len(plain.unused)


@settings(max_examples=100, deadline=None)
@given(rules=ledgers(), history=happenings())
def test_the_log_of_commits_replays_to_the_same_state(rules: dict, history: list[tuple]) -> None:
    members = Members(**rules)
    for event in history:
        members.happen(*event)
    again = SampleLedger(**rules)
    used = []
    for record in members.log:
        deal = again.replay(record)
        dealt = samples(again, deal)
        used.append(
            (deal.epoch, [s for seat in record.contributed or range(deal.seats) for s in dealt[seat]])
        )
    assert again.digest() == members.ledgers[0].digest()
    assert again.state() == members.ledgers[0].state()
    assert used == members.used


@settings(max_examples=50, deadline=None)
@given(first=st.lists(SEATS, min_size=1, max_size=20), second=st.lists(SEATS, min_size=1, max_size=20))
def test_the_global_batch_does_not_know_who_computes_it(first: list[int], second: list[int]) -> None:
    """Step by step the union of all seats' samples is the same whatever the members were."""
    rules = {"num_samples": 101, "batch_size": 12, "seed": 5}
    streams = []
    for seats_of_steps in (first, second):
        ledger = SampleLedger(**rules)
        stream = []
        for seats in seats_of_steps[: min(len(first), len(second))]:
            deal = ledger.deal(seats)
            stream.append([sample for part in samples(ledger, deal) for sample in part])
            ledger.commit(deal)
        streams.append(stream)
    assert streams[0] == streams[1]


def test_the_state_stays_small_however_long_the_run() -> None:
    ledger = SampleLedger(10**9, batch_size=4096, seed=1)
    for step in range(200):
        ledger.commit(ledger.deal(7), None if step % 3 else [0, 2, 3])
    assert len(json.dumps(ledger.state())) < 1000
    assert len(ledger.owed) <= 7


@pytest.mark.parametrize(
    ("seats", "counts"),
    [(1, (10,)), (2, (5, 5)), (3, (4, 3, 3)), (4, (3, 3, 2, 2)), (12, (1,) * 10 + (0, 0))],
)
def test_a_batch_is_cut_as_evenly_as_it_can_be(seats: int, counts: tuple[int, ...]) -> None:
    deal = SampleLedger(100, batch_size=10).deal(seats)
    assert deal.counts == counts
    assert deal.total == 10
    assert deal.is_even == (len(set(counts)) == 1)


def test_shares_are_followed_by_largest_remainder() -> None:
    ledger = SampleLedger(100, batch_size=10)
    assert ledger.deal(3, [2, 1, 1]).counts == (5, 3, 2)
    assert ledger.deal(3, [1, 0, 0]).counts == (10, 0, 0)
    assert ledger.deal(3, [1, 1, 1]).counts == ledger.deal(3).counts


def test_per_group_batches_grow_with_the_seats() -> None:
    ledger = SampleLedger(100, batch_size=8, batch="per_group")
    assert ledger.deal(1).counts == (8,)
    assert ledger.deal(5).counts == (8,) * 5


def test_the_last_batch_of_an_epoch_is_smaller_or_left_out() -> None:
    smaller = SampleLedger(10, batch_size=4)
    sizes = [(deal.epoch, deal.total, deal.is_last_of_epoch) for deal in commits(smaller, 4)]
    assert sizes == [(0, 4, False), (0, 4, False), (0, 2, True), (1, 4, False)]
    left_out = SampleLedger(10, batch_size=4, drop_last=True)
    sizes = [(deal.epoch, deal.total, deal.is_last_of_epoch) for deal in commits(left_out, 4)]
    assert sizes == [(0, 4, False), (0, 4, True), (1, 4, False), (1, 4, True)]
    short = SampleLedger(3, batch_size=4, drop_last=True)
    assert [(deal.epoch, deal.total) for deal in commits(short, 2)] == [(0, 3), (1, 3)]


def commits(ledger: SampleLedger, steps: int) -> list[Deal]:
    deals = []
    for _ in range(steps):
        deals.append(ledger.deal(2))
        ledger.commit(deals[-1])
    return deals


def test_owed_samples_come_first() -> None:
    ledger = SampleLedger(100, batch_size=10, shuffle=False)
    ledger.commit(ledger.deal(5), [0, 1, 3])
    assert ledger.owed == (Range(4, 6), Range(8, 10))
    deal = ledger.deal(2)
    assert samples(ledger, deal) == [[4, 5, 8, 9, 10], [11, 12, 13, 14, 15]]
    ledger.commit(deal)
    assert ledger.owed == ()


def test_a_commit_must_be_of_the_state_it_was_dealt_from() -> None:
    ledger = SampleLedger(100, batch_size=10)
    old = ledger.deal(2)
    ledger.commit(old)
    with pytest.raises(LedgerError, match=r"step 0 was dealt from ledger .* stands before step 1"):
        ledger.commit(old)
    other = SampleLedger(100, batch_size=10, seed=1)
    with pytest.raises(LedgerError, match="deal again"):
        ledger.commit(replace(other.deal(2), step=1))
    with pytest.raises(LedgerError, match=r"record is of step 5"):
        ledger.replay({"step": 5, "seats": 2})


@pytest.mark.parametrize("contributed", [[], [2], [-1, 0]])
def test_only_seats_of_the_deal_contribute(contributed: list[int]) -> None:
    ledger = SampleLedger(100, batch_size=10)
    before = ledger.state()
    with pytest.raises(LedgerError, match=r"valid: at least one of seats 0\.\.1"):
        ledger.commit(ledger.deal(2), contributed)
    assert ledger.state() == before


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"step": 0},
        {"step": "0", "seats": 1},
        {"step": 0, "seats": 1, "shares": 3},
        7,
        {"step": True, "seats": 1},
    ],
)
def test_a_broken_record_is_named(record: object) -> None:
    with pytest.raises(LedgerError, match="commit record needs integers"):
        SampleLedger(10, batch_size=2).replay(record)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"num_samples": 0, "batch_size": 1}, "0 samples; valid: at least 1"),
        ({"num_samples": 1, "batch_size": 0}, "batch_size is 0"),
        ({"num_samples": 1, "batch_size": 1, "batch": "each"}, 'valid: "global", "per_group"'),
    ],
)
def test_rules_out_of_range_are_named(rules: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SampleLedger(**rules)


@pytest.mark.parametrize("shares", [[1], [0, 0], [1, -1]])
def test_shares_out_of_range_are_named(shares: list[int]) -> None:
    with pytest.raises(LedgerError, match="valid: 2 integers"):
        SampleLedger(10, batch_size=2).deal(2, shares)
    with pytest.raises(LedgerError, match="seats is 0"):
        SampleLedger(10, batch_size=2).deal(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 99}, "has num_samples 99, this run 100"),
        ({"seed": 3}, "has seed 3, this run 0"),
        ({"shuffle": False}, "has shuffle False, this run True"),
        ({"version": 9}, "version 9"),
        ({"cursor": -1}, "cursor -1"),
        ({"cursor": 101}, "cursor 101"),
        ({"cursor": None}, "None is not an integer"),
        ({"cursor": 20, "owed": [[5, 5]]}, r"owes 5\.\.5"),
        ({"cursor": 20, "owed": [[5, 9], [9, 12]]}, r"owes 9\.\.12"),
        ({"cursor": 20, "owed": [[5, 21]]}, r"owes 5\.\.21"),
        ({"owed": "no"}, "cannot be read"),
    ],
)
def test_a_state_that_does_not_fit_is_named_and_changes_nothing(change: dict, message: str) -> None:
    ledger = SampleLedger(100, batch_size=10)
    before = ledger.state()
    with pytest.raises(ConfigError, match=message):
        ledger.load_state({**before, **change})
    assert ledger.state() == before


def test_the_batch_size_may_change_between_runs() -> None:
    ledger = SampleLedger(100, batch_size=10)
    ledger.commit(ledger.deal(2), [0])
    larger = SampleLedger(100, batch_size=30)
    larger.load_state(ledger.state())
    assert larger.remaining == ledger.remaining == 95
    assert larger.deal(2).total == 30


def test_members_with_other_histories_have_other_digests() -> None:
    """The same position, reached with other seats, is another history: gradients were averaged otherwise."""
    two, three = SampleLedger(100, batch_size=10), SampleLedger(100, batch_size=10)
    two.commit(two.deal(2))
    three.commit(three.deal(3))
    assert two.remaining == three.remaining
    assert two.digest() != three.digest()
    assert len(two.digest()) == 16


def test_a_copy_goes_its_own_way() -> None:
    ledger = SampleLedger(100, batch_size=10)
    ahead = ledger.copy()
    ahead.commit(ahead.deal(2))
    assert (ledger.step, ahead.step) == (0, 1)
