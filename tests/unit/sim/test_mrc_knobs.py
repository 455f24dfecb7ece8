"""Knobs of MRC that a scenario has a key for reach the engine and do what they say."""

from farstep import sim
from farstep.sim.reproduce.runs import streams


def test_planes_share_by_capacity_if_asked_to():
    fabric = sim.fabric("clos", nics=64, planes=4, radix=16)
    dead = [{"kind": "switch_down", "switch": f"t1/p0/{index}", "at_us": 0} for index in range(2)]

    def run(**knobs) -> sim.SimResult:
        transport = {"name": "mrc", **knobs}
        return sim.simulate(fabric, sim.permutation(size_bytes=4_000_000), transport=transport, faults=dead)

    equal, by_capacity = run(), run(capacity_share=True)
    assert (run(capacity_share=False).finish_ns == equal.finish_ns).all()
    assert not by_capacity.meta["ignored"]
    shares = [result.plane_bytes()[0] / result.plane_bytes()[1:].mean() for result in (equal, by_capacity)]
    assert shares[1] < 0.96 * shares[0], "half of plane 0 is gone, two of its four T1"
    assert by_capacity.flow_time.p50_ns < equal.flow_time.p50_ns


def test_short_messages_do_not_wait_for_completions():
    fabric = sim.fabric("leaf-spine", leaves=4, spines=4, nics_per_leaf=4, planes=4)

    def lasts_ns(**engine) -> int:
        result = sim.simulate(
            fabric, streams([0], [12], 20_000, messages=200), transport={"name": "mrc", "engine": engine}
        )
        return int(result.finish_ns.max())

    assert lasts_ns() == lasts_ns(send_queue=16)
    assert lasts_ns() < 0.4 * lasts_ns(send_queue=4), "four messages are a quarter of what a round trip holds"
