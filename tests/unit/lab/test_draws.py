"""Random decisions: reproducible, independent of how packets are grouped, with the right frequencies."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.lab.draws import BLOCK, QUIET_FOREVER, Bernoulli, LossDraws


def grouped(draws, sizes):
    """Asks group by group; returns all hits."""
    hits, first = [], 0
    for size in sizes:
        hits += draws.hits(first, first + size)
        first += size
    return hits


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=40), st.sampled_from([0.001, 0.05, 0.7, 1.0]))
def test_what_befalls_a_packet_does_not_depend_on_its_burst(sizes, probability):
    whole = Bernoulli("key", probability).hits(0, sum(sizes))
    assert grouped(Bernoulli("key", probability), sizes) == whole


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=40), st.sampled_from([1.0, 3.0, 50.0]))
def test_a_run_of_losses_does_not_depend_on_bursts_either(sizes, burst_packets):
    whole, parts = LossDraws("key"), LossDraws("key")
    whole.set(0.1, burst_packets)
    parts.set(0.1, burst_packets)
    assert grouped(parts, sizes) == whole.hits(0, sum(sizes))


@pytest.mark.parametrize("probability", [0.001, 0.01, 0.3])
def test_the_share_of_hits_is_the_probability(probability):
    count = 200_000
    hits = Bernoulli("share", probability).hits(0, count)
    spread = (probability * (1 - probability) / count) ** 0.5
    assert abs(len(hits) / count - probability) < 5 * spread


@pytest.mark.parametrize(("loss", "burst_packets"), [(0.01, 8.0), (0.2, 4.0), (0.05, 100.0)])
def test_losses_in_runs_have_the_wanted_share_and_mean_length(loss, burst_packets):
    draws = LossDraws("runs")
    draws.set(loss, burst_packets)
    count = 400_000
    lost = draws.hits(0, count)
    runs = 1 + sum(later != earlier + 1 for earlier, later in pairwise(lost))
    assert len(lost) / count == pytest.approx(loss, rel=0.25)
    assert len(lost) / runs == pytest.approx(burst_packets, rel=0.25)


def test_nothing_happens_before_the_packet_named_as_quiet_limit():
    draws = Bernoulli("quiet", 0.002)
    hits = set(draws.hits(0, 5 * BLOCK))
    index = 0
    while index < 5 * BLOCK:
        limit = draws.quiet_until(index)
        assert not hits & set(range(index, min(limit, 5 * BLOCK)))
        index = limit + 1 if limit in hits else max(limit, index + 1)
    assert Bernoulli("never", 0.0).quiet_until(7) == QUIET_FOREVER
    assert Bernoulli("always", 1.0).quiet_until(7) == 7


def test_different_keys_give_different_losses():
    assert Bernoulli("one", 0.1).hits(0, 500) != Bernoulli("other", 0.1).hits(0, 500)
