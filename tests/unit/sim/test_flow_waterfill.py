import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.sim.flow import LoadMatrix, max_min_rates


def matrix_of(rows):
    """Builds a matrix from one dict of {constraint: share} per flow."""
    offset = np.cumsum([0, *(len(row) for row in rows)])
    constraint = np.array([key for row in rows for key in row], np.int64)
    share = np.array([value for row in rows for value in row.values()], np.float64)
    return LoadMatrix(offset.astype(np.int64), constraint, share)


def naive_rates(rows, capacity, limit):
    """Progressive filling, one level at a time: raise all open flows together until something is full."""
    rates = [0.0] * len(rows)
    is_open = [True] * len(rows)
    left = list(capacity)
    while any(is_open):
        steps = []
        for key, room in enumerate(left):
            demand = sum(row.get(key, 0.0) for row, still in zip(rows, is_open, strict=True) if still)
            if demand > 0:
                steps.append(max(room, 0.0) / demand)
        steps += [limit[f] - rates[f] for f in range(len(rows)) if is_open[f]]
        step = min(steps)
        for f, row in enumerate(rows):
            if is_open[f]:
                rates[f] += step
                for key, share in row.items():
                    left[key] -= step * share
        for f, row in enumerate(rows):
            full = any(left[key] <= 1e-12 * max(capacity[key], 1.0) for key in row)
            if is_open[f] and (full or rates[f] >= limit[f] * (1 - 1e-12)):
                is_open[f] = False
    return rates


def test_two_flows_share_a_link_and_the_third_takes_what_is_left():
    rates = max_min_rates(matrix_of([{0: 1.0}, {0: 1.0, 1: 1.0}, {1: 1.0}]), np.array([1.0, 2.0]))
    assert rates == pytest.approx([0.5, 0.5, 1.5])


def test_parking_lot():
    """The flow over all three links gets the share of the most crowded; each link's own flows get the rest."""
    rows = [{0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0}, {1: 1.0}, {1: 1.0}, {2: 1.0}]
    rates = max_min_rates(matrix_of(rows), np.full(3, 12.0))
    assert rates == pytest.approx([4.0, 8.0, 4.0, 4.0, 8.0])


def test_a_flow_split_over_two_paths_loads_each_with_its_share():
    rates = max_min_rates(matrix_of([{0: 0.5, 1: 0.5}, {1: 1.0}]), np.array([10.0, 3.0]))
    # Both rise to 2: the second link then carries 1 + 2.
    assert rates == pytest.approx([2.0, 2.0])


def test_unequal_shares_of_one_flow():
    rates = max_min_rates(matrix_of([{0: 0.25, 1: 0.75}]), np.array([1.0, 9.0]))
    assert rates == pytest.approx([4.0])


def test_a_limit_leaves_its_rest_to_others():
    rates = max_min_rates(matrix_of([{0: 1.0}, {0: 1.0}]), np.array([10.0]), np.array([2.0, np.inf]))
    assert rates == pytest.approx([2.0, 8.0])


def test_a_dead_link_stops_its_flows_only():
    rates = max_min_rates(matrix_of([{0: 1.0, 1: 1.0}, {1: 1.0}]), np.array([0.0, 5.0]))
    assert rates == pytest.approx([0.0, 5.0])


def test_without_flows_there_are_no_rates():
    assert max_min_rates(matrix_of([]), np.array([1.0])).shape == (0,)


def test_a_flow_nothing_holds_back_is_unbounded():
    assert np.isinf(max_min_rates(matrix_of([{}]), np.array([1.0])))


NUM_LINKS = 6
problems = st.lists(
    st.dictionaries(st.integers(0, NUM_LINKS - 1), st.sampled_from([0.125, 0.25, 0.5, 1.0]), min_size=1),
    min_size=1,
    max_size=12,
).flatmap(
    lambda rows: st.tuples(
        st.just(rows),
        st.lists(st.integers(1, 20), min_size=NUM_LINKS, max_size=NUM_LINKS),
        st.lists(
            st.sampled_from([0.5, 3.0, 1000.0]),
            min_size=len(rows),
            max_size=len(rows),
        ),
    )
)


@given(problems)
@settings(max_examples=200, deadline=None)
def test_rates_equal_those_of_filling_level_by_level(problem):
    rows, capacity, limit = problem
    rates = max_min_rates(matrix_of(rows), np.array(capacity, np.float64), np.array(limit))
    assert rates == pytest.approx(naive_rates(rows, capacity, limit), rel=1e-6)


@given(problems)
@settings(max_examples=200, deadline=None)
def test_no_link_is_over_its_capacity_and_every_flow_is_held_by_something(problem):
    rows, capacity, limit = problem
    matrix, room = matrix_of(rows), np.array(capacity, np.float64)
    rates = max_min_rates(matrix, room, np.array(limit))
    load = matrix.loads(rates, NUM_LINKS)
    assert (load <= room * (1 + 1e-9)).all()
    for flow, row in enumerate(rows):
        at_limit = rates[flow] >= limit[flow] * (1 - 1e-9)
        # Bottlenecked: on some full link no flow is faster.
        bottlenecked = any(
            load[key] >= room[key] * (1 - 1e-6)
            and all(rates[other] <= rates[flow] * (1 + 1e-6) for other, its in enumerate(rows) if key in its)
            for key in row
        )
        assert at_limit or bottlenecked


@given(problems, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_flows_does_not_matter(problem, random):
    rows, capacity, limit = problem
    order = list(range(len(rows)))
    random.shuffle(order)
    room = np.array(capacity, np.float64)
    straight = max_min_rates(matrix_of(rows), room, np.array(limit))
    shuffled = max_min_rates(matrix_of([rows[i] for i in order]), room, np.array([limit[i] for i in order]))
    assert shuffled == pytest.approx(straight[order], rel=1e-9)


def weighted(rows, weights):
    matrix = matrix_of(rows)
    return LoadMatrix(matrix.offset, matrix.constraint, matrix.share, np.asarray(weights, np.float64))


def test_weights_divide_what_is_full():
    rates = max_min_rates(
        weighted([{0: 1.0}, {0: 1.0}, {0: 1.0, 1: 1.0}], [1.0, 2.0, 3.0, 1.0]), np.array([12.0, 3.0])
    )
    # The third is held to 3 elsewhere; the others divide the rest one to two.
    assert rates == pytest.approx([3.0, 6.0, 3.0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_weighted_rates_fit_whatever_the_weights(data):
    count, constraints = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    numbers = st.integers(0, constraints - 1)
    rows = [
        dict.fromkeys(data.draw(st.lists(numbers, min_size=1, max_size=3, unique=True)), 1.0)
        for _ in range(count)
    ]
    weights = [data.draw(st.floats(0.2, 5.0)) for row in rows for _ in row]
    capacity = np.array([data.draw(st.floats(1.0, 100.0)) for _ in range(constraints)])
    matrix = weighted(rows, weights)

    rates = max_min_rates(matrix, capacity)

    load = matrix.loads(rates, constraints)
    assert (load <= capacity * (1.0 + 1e-6)).all()
    assert (rates > 0.0).all()
