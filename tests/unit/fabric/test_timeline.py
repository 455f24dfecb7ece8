"""The timeline: what happens when, and what is in force when faults overlap."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric import (
    ChannelState,
    ConfigError,
    FaultScript,
    FaultTimeline,
    compose,
    full_mesh,
    parse_fault,
)

S = 1_000_000_000
NETWORK = full_mesh(("a", "b", "c"), planes=2, rate_mbps=100.0, delay_ms=10.0)


def timeline(*entries, network=NETWORK):
    return FaultTimeline(FaultScript.parse({"faults": list(entries)}), network)


def brief(actions):
    return [(action.due_ns / S, "+" if action.is_apply else "-", action.fault) for action in actions]


def state(line, path="a-b:0"):
    channel = next(channel for channel in line.channels if channel.path == path)
    return line.state(channel)


def test_a_fault_starts_and_ends_at_its_time():
    line = timeline({"kind": "path_down", "path": "a-b:0", "at_s": 2, "duration_s": 3, "name": "cut"})
    assert line.next_ns == 2 * S
    assert line.advance_to(2 * S - 1) == []
    assert brief(line.advance_to(2 * S)) == [(2, "+", "cut")]
    assert state(line).is_down
    assert line.active_faults == ("cut",)
    assert line.next_ns == 5 * S
    assert brief(line.advance_to(9 * S)) == [(5, "-", "cut")]
    assert line.is_finished
    assert state(line) == NETWORK.states[line.channels[0]]


def test_a_fault_starts_and_ends_at_its_step():
    line = timeline({"kind": "plane_down", "plane": 1, "at_step": 40, "duration_steps": 20, "name": "cut"})
    assert line.reach_step(39, S) == []
    (action,) = line.reach_step(40, 2 * S)
    assert (action.step, action.is_apply, len(action.channels)) == (40, True, 6)
    assert line.reach_step(40, 3 * S) == []
    assert line.reach_step(12, 3 * S) == []
    (action,) = line.reach_step(60, 4 * S)
    assert (action.step, action.is_apply) == (60, False)


def test_a_fault_may_start_at_a_step_and_last_seconds_or_the_other_way_round():
    line = timeline(
        {"kind": "path_down", "path": "a-b:0", "at_step": 5, "duration_s": 1.5, "name": "by-step"},
        {
            "kind": "loss",
            "path": "a-b:1",
            "at_s": 1,
            "duration_steps": 2,
            "loss_percent": 1,
            "name": "by-time",
        },
    )
    assert line.reach_step(3, 0) == []
    assert brief(line.advance_to(S)) == [(1, "+", "by-time")]
    assert brief(line.reach_step(5, 2 * S)) == [(2, "-", "by-time"), (2, "+", "by-step")]
    assert brief(line.advance_to(10 * S)) == [(3.5, "-", "by-step")]


def test_steps_that_are_skipped_still_take_effect_in_order():
    line = timeline(
        {"kind": "path_down", "path": "a-b:0", "at_step": 5, "duration_steps": 2, "name": "one"},
        {"kind": "path_down", "path": "a-b:1", "at_step": 6, "duration_steps": 2, "name": "two"},
    )
    actions = line.reach_step(100, 0)
    assert [(action.step, action.is_apply, action.fault) for action in actions] == [
        (5, True, "one"),
        (6, True, "two"),
        (7, False, "one"),
        (8, False, "two"),
    ]


def test_taking_one_fault_back_leaves_the_others_in_force():
    line = timeline(
        {"kind": "rate", "path": "a-b:0", "rate_mbps": 10, "at_s": 1, "duration_s": 10},
        {"kind": "rate", "path": "a-b:*", "rate_mbps": 50, "at_s": 2, "duration_s": 2},
        {"kind": "rate", "plane": 0, "rate_mbps": 2, "at_s": 3, "duration_s": 2},
    )
    seen = []
    for second in range(13):
        line.advance_to(second * S)
        seen.append(state(line).rate_mbps)
    assert seen == [100, 10, 10, 2, 2, 10, 10, 10, 10, 10, 10, 100, 100]


def test_an_action_carries_the_composed_state_of_each_channel():
    line = timeline(
        {"kind": "delay", "path": "a-b:0", "extra_delay_ms": 5, "at_s": 1, "duration_s": 4},
        {"kind": "loss", "path": "a-b:0", "loss_percent": 3, "at_s": 2, "duration_s": 1},
    )
    actions = line.advance_to(9 * S)
    told = [(dict(action.states)[line.channels[0]]) for action in actions]
    assert [(one.delay_ms, one.loss_percent) for one in told] == [(15, 0), (15, 3), (15, 0), (10, 0)]


def test_a_fault_without_duration_lasts_until_it_is_restored_by_name_or_target():
    line = timeline(
        {"kind": "path_down", "path": "a-b:0", "at_s": 1, "name": "cut"},
        {"kind": "loss", "plane": 0, "loss_percent": 2, "at_s": 1, "name": "noise"},
        {"kind": "restore", "fault": "cut", "at_s": 2},
        {"kind": "restore", "path": "a-b:0", "at_s": 3},
        {"kind": "restore", "site": "c", "at_s": 4},
    )
    assert brief(line.advance_to(2 * S)) == [(1, "+", "noise"), (1, "+", "cut"), (2, "-", "cut")]
    (action,) = line.advance_to(3 * S)
    assert {channel.path for channel in action.channels} == {"a-b:0"}
    assert state(line, "a-c:0").loss_percent == 2
    assert not line.is_finished
    line.advance_to(4 * S)
    assert line.is_finished


def test_a_restored_fault_is_not_taken_back_again_when_its_duration_ends():
    line = timeline(
        {"kind": "path_down", "path": "a-b:0", "at_s": 1, "duration_s": 5, "name": "cut"},
        {"kind": "restore", "fault": "cut", "at_s": 2},
    )
    assert brief(line.advance_to(60 * S)) == [(1, "+", "cut"), (2, "-", "cut")]


def test_at_one_instant_what_ends_comes_before_what_starts():
    line = timeline(
        {"kind": "path_down", "path": "a-b:0", "at_s": 3, "duration_s": 1, "name": "second"},
        {"kind": "path_down", "path": "a-b:0", "at_s": 1, "duration_s": 2, "name": "first"},
    )
    line.advance_to(2 * S)
    assert brief(line.advance_to(3 * S)) == [(3, "-", "first"), (3, "+", "second")]


def test_a_flap_goes_down_and_up_and_ends_up():
    line = timeline(
        {
            "kind": "flap",
            "path": "a-b:0",
            "period_s": 1,
            "down_s": 0.25,
            "at_s": 1,
            "duration_s": 2.1,
            "name": "f",
        }
    )
    assert brief(line.advance_to(60 * S)) == [
        (1, "+", "f"),
        (1.25, "-", "f"),
        (2, "+", "f"),
        (2.25, "-", "f"),
        (3, "+", "f"),
        (3.1, "-", "f"),
    ]
    assert line.is_finished
    assert line.next_ns is None


def test_real_packets_are_not_flapped_faster_than_a_millisecond():
    table = {"kind": "flap", "path": "a-b:0", "period_s": 0.0001, "at_s": 0}
    told = r"faults\[0\].period_s = 0.0001: must be greater than or equal to 0.001$"
    with pytest.raises(ConfigError, match=told):
        timeline(table)
    running = timeline()
    with pytest.raises(ConfigError, match=r"^fault.period_s = 0.0001: must be"):
        running.inject(parse_fault(table), 0)


def test_a_flap_by_steps_follows_the_steps():
    line = timeline(
        {"kind": "flap", "plane": 0, "period_steps": 10, "down_steps": 3, "at_step": 5, "name": "f"}
    )
    downs = []
    for step in range(40):
        line.reach_step(step, step * S)
        downs.append(state(line).is_down)
    assert [step for step, is_down in enumerate(downs) if is_down] == [
        5,
        6,
        7,
        15,
        16,
        17,
        25,
        26,
        27,
        35,
        36,
        37,
    ]


def test_a_signalled_outage_among_silent_ones_is_signalled():
    line = timeline(
        {"kind": "path_down", "path": "a-b:0", "at_s": 1, "duration_s": 4},
        {"kind": "path_down", "path": "a-b:0", "at_s": 2, "duration_s": 1, "silent": False},
    )
    told = []
    for second in range(6):
        line.advance_to(second * S)
        told.append((state(line).is_down, state(line).is_detected))
    assert told == [(False, False), (True, False), (True, True), (True, False), (True, False), (False, False)]


def test_a_fault_can_be_injected_while_the_script_runs():
    line = timeline(
        {"kind": "loss", "path": "a-b:0", "loss_percent": 1, "at_s": 1, "duration_s": 9, "name": "n"}
    )
    line.advance_to(2 * S)
    fault = parse_fault({"kind": "path_down", "path": "a-b:0", "duration_s": 1, "name": "now"})
    assert brief(line.inject(fault, 3 * S)) == [(3, "+", "now")]
    with pytest.raises(ConfigError, match='"now" is used by an earlier fault'):
        line.inject(fault, 3 * S)
    with pytest.raises(ConfigError, match="known faults: n, now"):
        line.inject(parse_fault({"kind": "restore", "fault": "later"}), 3 * S)
    with pytest.raises(ConfigError, match="known paths"):
        line.inject(parse_fault({"kind": "path_down", "path": "north"}), 3 * S)
    assert brief(line.inject(parse_fault({"kind": "restore", "fault": "n"}), 3 * S)) == [(3, "-", "n")]
    assert brief(line.advance_to(4 * S)) == [(4, "-", "now")]


def test_everything_can_be_ended_at_once():
    line = timeline(
        {"kind": "flap", "path": "a-b:0", "period_s": 1, "at_s": 0},
        {"kind": "loss", "plane": 1, "loss_percent": 5, "at_s": 0},
        {"kind": "site_down", "site": "c", "at_s": 9},
    )
    line.advance_to(S // 4)
    assert [action.is_apply for action in line.end_all(S // 4)] == [False, False]
    assert line.is_finished
    assert line.advance_to(60 * S) == []


def test_a_relative_value_needs_a_value_to_be_relative_to():
    entry = {"kind": "rate", "plane": 0, "rate_percent": 50, "at_s": 1}
    line = timeline(entry)
    line.advance_to(S)
    assert state(line).rate_mbps == 50
    with pytest.raises(ConfigError, match=r"faults\[0\]: rate_percent needs a path with rate_mbps"):
        timeline(entry, network=full_mesh(("a", "b")))


def test_composition_does_not_depend_on_the_order():
    base = ChannelState(rate_mbps=100.0)
    overrides = [
        ("rate", 5.0),
        ("rate", 50.0),
        ("loss", (1.0, 1.0)),
        ("loss", (1.0, 30.0)),
        ("queue", 7),
        ("outage", False),
    ]
    results = set()
    for seed in range(20):
        random.Random(seed).shuffle(overrides)
        results.add(compose(base, overrides))
    assert results == {
        ChannelState(
            rate_mbps=5.0, loss_percent=1.0, loss_burst_packets=30.0, queue_limit_bytes=7, is_down=True
        )
    }


# -- properties ---------------------------------------------------------------------------------------------

TARGETS = st.sampled_from(
    [
        {"path": "a-b:0"},
        {"path": "*:1"},
        {"plane": 0},
        {"site": "c"},
        {"sites": ["a", "b"]},
        {"plane": 1, "site": "a"},
        {"path": "b-c:0", "direction": "b->c"},
    ]
)
EFFECTS = st.sampled_from(
    [
        {"kind": "loss", "loss_percent": 4},
        {"kind": "loss", "loss_percent": 40},
        {"kind": "burst_loss", "loss_percent": 4, "burst_packets": 9},
        {"kind": "rate", "rate_mbps": 3},
        {"kind": "rate", "rate_percent": 50},
        {"kind": "delay", "extra_delay_ms": 1},
        {"kind": "jitter", "jitter_ms": 2},
        {"kind": "flap", "period_s": 3},
        {"kind": "flap", "period_steps": 4, "silent": False},
        {"kind": "queue", "queue_limit_kb": 3},
    ]
)
STARTS = st.one_of(
    st.integers(0, 20).map(lambda at: {"at_s": at}), st.integers(0, 20).map(lambda at: {"at_step": at})
)
LENGTHS = st.one_of(
    st.integers(1, 20).map(lambda length: {"duration_s": length}),
    st.integers(1, 20).map(lambda length: {"duration_steps": length}),
)
BOUNDED = st.builds(
    lambda *parts: {k: v for part in parts for k, v in part.items()}, TARGETS, EFFECTS, STARTS, LENGTHS
)
RESTORES = st.builds(lambda target, start: {"kind": "restore", **target, **start}, TARGETS, STARTS)
SCRIPTS = st.lists(st.one_of(BOUNDED, BOUNDED, RESTORES), max_size=12)


def play(entries, *, step_every_s=2, until_s=120):
    """Runs a script with a step every few seconds; returns the timeline and all its actions."""
    line = timeline(*entries)
    actions = []
    for second in range(until_s):
        actions += line.advance_to(second * S)
        if second % step_every_s == 0:
            actions += line.reach_step(second // step_every_s, second * S)
    return line, actions


@settings(max_examples=60, deadline=None)
@given(SCRIPTS)
def test_when_all_faults_have_ended_the_network_is_as_at_first(entries):
    line, _ = play(entries)
    assert line.is_finished
    assert line.active_faults == ()
    assert {channel: line.state(channel) for channel in line.channels} == NETWORK.states


@settings(max_examples=60, deadline=None)
@given(SCRIPTS)
def test_every_channel_is_taken_back_as_often_as_it_was_struck(entries):
    _, actions = play(entries)
    struck = set()
    for action in actions:
        for channel in action.channels:
            key = (action.fault_id, channel)
            assert (key in struck) is not action.is_apply
            struck ^= {key}
    assert not struck


@settings(max_examples=60, deadline=None)
@given(SCRIPTS, st.randoms(use_true_random=False))
def test_the_order_of_the_listing_does_not_matter(entries, rng):
    def told(actions):
        return [(a.due_ns, a.step, a.is_apply, a.fault, a.kind, a.states) for a in actions]

    shuffled = list(entries)
    rng.shuffle(shuffled)
    assert told(play(entries)[1]) == told(play(shuffled)[1])


@settings(max_examples=60, deadline=None)
@given(SCRIPTS, st.integers(1, 30))
def test_looking_rarely_gives_the_same_actions_as_looking_often(entries, stride):
    by_time = [entry for entry in entries if "at_s" in entry and "duration_steps" not in entry]
    by_time = [entry for entry in by_time if "period_steps" not in entry]
    often, rarely = timeline(*by_time), timeline(*by_time)
    actions_often = [action for second in range(90) for action in often.advance_to(second * S)]
    actions_rarely = [
        action for second in range(0, 90 + stride, stride) for action in rarely.advance_to(second * S)
    ]
    assert actions_often == actions_rarely[: len(actions_often)]
    assert all(action.due_ns > 89 * S for action in actions_rarely[len(actions_often) :])
