"""The transports MRC is compared with: their knobs, and what tells them apart on a small fabric."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from farstep import sim
from farstep.fabric.errors import ConfigError
from farstep.sim.faults import LinkAction
from farstep.sim.packet_knobs import PACKET_TRANSPORTS, engine_changes
from farstep.sim.reconvergence import reroutes
from farstep.sim.reproduce.runs import streams
from farstep.sim.rivals import DCQCN_PRESETS, RIVALS, RivalSettingsError, RoceKnobs, rival_knobs
from farstep.sim.transports import TRANSPORTS, Switch, Transport

KB = 1000


def fabric(**changes):
    return sim.fabric("leaf-spine", **{"leaves": 4, "spines": 4, "nics_per_leaf": 4, **changes})


def run(transport, workload=None, *, topology=None, **changes):
    workload = workload or sim.permutation(size_bytes=400 * KB)
    return sim.simulate(topology or fabric(), workload, transport=transport, **changes)


def one_flow(size_bytes, source=0, target=12):
    return streams([source], [target], size_bytes)


def durations_ns(result):
    return result.finish_ns - result.start_ns


class TestKnobs:
    def test_every_rival_of_a_scenario_is_one_of_the_engine(self):
        assert set(RIVALS) == set(PACKET_TRANSPORTS) - {"mrc"} == set(TRANSPORTS) - {"mrc", "ideal"}

    @pytest.mark.parametrize("name", RIVALS)
    def test_the_engine_knows_every_knob(self, name):
        every = {item.name: getattr(RIVALS[name], item.name) for item in dataclasses.fields(RIVALS[name])}
        result = run({"name": name, "engine": every}, sim.permutation(size_bytes=20 * KB))
        assert result.is_complete

    @pytest.mark.parametrize(
        ("name", "changes", "words"),
        [
            ("roce", {"queue_pairs": 17}, "queue_pairs = 17; valid: whole numbers from 1 to 16"),
            ("roce", {"queue_pairs": 2.0}, "queue_pairs = 2.0; valid: whole numbers"),
            ("roce", {"xon_packets": 15}, "xon_packets = 15; valid: below xoff_packets = 15"),
            ("roce", {"pfc": 1}, "pfc = 1; valid: true or false"),
            ("tcp", {"growth": "bbr"}, 'growth = "bbr"; valid: reno, cubic, dctcp'),
            ("uet-reps", {"entropies": 48}, "entropies = 48; valid: a power of two"),
            ("ndp", {"window": 3}, "window: no knob of this transport; valid: path_rtt_ns"),
            ("quic", {}, 'transport = "quic"; valid: uet-oblivious, uet-bitmap'),
        ],
    )
    def test_what_cannot_be_used_is_told(self, name, changes, words):
        with pytest.raises(RivalSettingsError) as caught:
            rival_knobs(name, changes)
        assert words in str(caught.value)

    def test_a_scenario_names_the_key(self):
        with pytest.raises(ConfigError, match=r"transport\.engine\.initial_packets = 0; valid"):
            run({"name": "tcp", "engine": {"initial_packets": 0}})
        with pytest.raises(ConfigError, match=r'transport\.engine\.preset = "ib".*htsim.*simai-400g'):
            run({"name": "roce", "engine": {"preset": "ib"}})

    def test_keys_of_a_scenario_reach_the_engine(self):
        transport = Transport(name="roce", queue_pairs=8, rto_us=500.0, dcqcn=False)
        name, changes, ignored = engine_changes(transport, Switch())
        assert name == "roce"
        assert not ignored
        assert {key: changes[key] for key in ("queue_pairs", "rto_ns", "dcqcn")} == {
            "queue_pairs": 8,
            "rto_ns": 500_000,
            "dcqcn": False,
        }

    def test_presets_change_marks_and_timers(self):
        transport = Transport(name="roce", engine={"preset": "simai-400g"})
        _, changes, _ = engine_changes(transport, Switch())
        assert changes["rate_timer_ns"] == 900_000
        marks = ("ecn_min_bytes", "ecn_max_bytes", "ecn_max_share")
        assert [changes[key] for key in marks] == [800_000, 3_200_000, 0.2]
        # 50 Mb/s and 100 Mb/s.
        assert (changes["additive_bytes_per_s"], changes["hyper_bytes_per_s"]) == (6.25e6, 12.5e6)
        for preset in DCQCN_PRESETS.values():
            known = {item.name for item in dataclasses.fields(RoceKnobs)}
            assert set(preset) <= known | {"ecn_min_bytes", "ecn_max_bytes", "ecn_max_share"}

    def test_switches_follow_the_transport_unless_the_scenario_says_otherwise(self):
        _, changes, _ = engine_changes(Transport(name="tcp"), Switch())
        assert changes["trimming"] is False
        _, changes, _ = engine_changes(Transport(name="tcp"), Switch(trimming=True))
        assert changes["trimming"] is True


class TestRuns:
    @pytest.mark.parametrize("name", RIVALS)
    def test_equal_seeds_give_equal_results(self, name):
        first, again, other = (run(name, seed=seed) for seed in (3, 3, 4))
        assert first.is_complete
        assert first.finish_ns.tolist() == again.finish_ns.tolist()
        assert first.finish_ns.tolist() != other.finish_ns.tolist()

    def test_lossless_fabrics_drop_nothing(self):
        result = run("roce", sim.incast(senders=12, size_bytes=400 * KB))
        assert result.counters["pauses"] > 0
        assert result.counters["dropped"] == result.counters["trimmed"] == 0
        lossy = run(
            {"name": "roce", "pfc": False, "rto_us": 500.0}, sim.incast(senders=12, size_bytes=400 * KB)
        )
        assert lossy.counters["pauses"] == 0
        assert lossy.counters["dropped"] > 0
        assert lossy.is_complete

    def test_spraying_beats_hashing(self):
        def median(name, **knobs):
            found = [np.median(durations_ns(run({"name": name, **knobs}, seed=seed))) for seed in range(4)]
            return float(np.mean(found))

        assert median("uet-mixed") < 0.8 * median("roce")
        assert median("roce", queue_pairs=8) < median("roce")

    def test_reconvergence_decides_how_long_hashed_flows_wait(self):
        cut = {"at_us": 20, "kind": "switch_down", "switch": "t1/p0/1", "silent": False}
        knobs = {"name": "roce", "queue_pairs": 8, "rto_us": 200.0}

        def last_us(delay_us):
            result = run({**knobs, "reconvergence_us": delay_us}, faults=[cut])
            assert result.is_complete
            return float(result.finish_ns.max()) / 1e3

        soon, late = last_us(500.0), last_us(5_000.0)
        assert 500 < soon < 2_500
        assert 5_000 < late < 8_000

    @pytest.mark.parametrize("delay_us", [50_000.0, 2_000_000.0], ids=["bfd", "bgp"])
    def test_routing_may_take_as_long_as_protocols_do(self, delay_us):
        cut = {"at_us": 20, "kind": "switch_down", "switch": "t1/p0/1", "silent": False}
        result = run({"name": "tcp", "reconvergence_us": delay_us, "rto_us": 10_000.0}, faults=[cut])
        assert result.is_complete
        # The back-off of a TCP has reached no more than what it waited so far.
        assert delay_us < float(result.finish_ns.max()) / 1e3 < 2.5 * delay_us

    @pytest.mark.parametrize("failover_ns", [3_000_000, 500_000])
    def test_adaptive_routing_leaves_a_silent_plane_after_its_failover_time(self, failover_ns):
        topology = fabric(planes=4)
        cut = {"at_us": 20, "kind": "link_down", "link": "nic/0-t0/p1/0"}
        workload = one_flow(4_000 * KB)
        knobs = {"name": "adaptive-routing", "engine": {"failover_ns": failover_ns, "rto_ns": 200_000}}
        result = run(knobs, workload, topology=topology, faults=[cut])
        assert result.is_complete
        lasted_ns = float(durations_ns(result).max())
        alone_ns = float(durations_ns(run(knobs, workload, topology=topology)).max())
        assert failover_ns < lasted_ns < failover_ns + 3 * alone_ns + 600_000

    def test_ndp_sends_a_bandwidth_delay_product_blind(self):
        one = sim.fabric("leaf-spine", leaves=4, spines=4, nics_per_leaf=4, port_gbps=400.0)
        workload = one_flow(8_000 * KB)
        settings = {"name": "ndp", "host_latency_us": 2.0}
        full, few = (
            run({**settings, "engine": {"initial_packets": n}}, workload, topology=one) for n in (0, 20)
        )
        line_ns = 8_000 * KB * 8 / 400
        assert float(durations_ns(full).max()) < 1.1 * line_ns
        assert float(durations_ns(few).max()) > 1.5 * line_ns

    @pytest.mark.parametrize("planes", [2, 4, 8])
    def test_ndp_fills_several_planes_as_it_fills_one(self, planes):
        workload = one_flow(8_000 * KB)

        def lasts_ns(planes):
            topology = fabric(planes=planes, port_gbps=400.0 / planes)
            result = run({"name": "ndp", "host_latency_us": 2.0}, workload, topology=topology)
            return float(durations_ns(result).max())

        assert lasts_ns(planes) < 1.05 * lasts_ns(1)

    def test_a_hash_takes_queue_pairs_to_planes(self):
        workload = sim.permutation(size_bytes=200 * KB)

        def planes_used(queue_pairs):
            knobs = {"name": "roce", "queue_pairs": queue_pairs}
            result = run(knobs, workload, topology=fabric(planes=4), sample_interval_us=10.0)
            sent = np.asarray(result.series["plane_bytes"], float).sum(axis=0)
            return float(sent.min() / sent.max()), float(np.median(durations_ns(result)))

        evenness_of_one, one_ns = planes_used(1)
        evenness_of_many, many_ns = planes_used(16)
        assert evenness_of_one < evenness_of_many < 1
        assert many_ns < one_ns

    def test_marks_reach_the_share_they_are_set_to(self):
        def marked(share):
            engine = {"ecn_min_bytes": 0, "ecn_max_bytes": 10_000_000, "ecn_max_share": share, "pfc": False}
            switch = Switch(queue_bytes=10_000_000, last_hop_queue_bytes=10_000_000)
            result = run(
                {"name": "roce", "dcqcn": False, "engine": engine},
                sim.incast(senders=4, size_bytes=400 * KB),
                switch=switch,
            )
            return result.counters["marked"]

        assert 0.1 < marked(0.2) / marked(1.0) < 0.3


class TestReroutes:
    def test_only_what_is_signalled_and_of_the_fabric_changes_routes(self):
        topology = fabric()
        between = np.flatnonzero((topology.link_source >= 16) & (topology.link_target >= 16)).astype(
            np.int32
        )[:2]
        nic = np.array([0, 1], np.int32)
        actions = [
            LinkAction(time_ns=10, links=between, kind="down"),
            LinkAction(time_ns=20, links=nic, kind="down"),
            LinkAction(time_ns=30, links=between + 4, kind="down", is_signalled=False),
            LinkAction(time_ns=40, links=between, kind="up"),
        ]
        found = reroutes(topology, actions, 1_000.0)
        assert [time_ns for time_ns, _ in found] == [1_010, 1_040]
        assert not np.isin(between, found[0][1]["set_links"]).any()
        assert np.array_equal(found[1][1]["set_links"], topology.routes().columns()["set_links"])
