"""Faults in a lab do what their names say, to the links they name and to no others, and can be taken back."""

import math
from collections.abc import Iterator

import pytest

from farstep.fabric import clos, leaf_spine, parse_fault
from farstep.fabric.addresses import ev_of
from farstep.fabric.topology import LinkTimeline
from farstep.lab.fabric import FabricLab, FaultNotice, LabError, LabFaults, link_states
from farstep.lab.fabric.impairments import LinkState
from tests.integration.lab.lab_kit import (
    Arrived,
    built,
    has_carrier,
    link_number,
    needs_lab,
    send,
)

pytestmark = [pytest.mark.netns, needs_lab]

COUNT = 200
CUT = "link:t0/p0/0-t1/p0/1"


@pytest.fixture(scope="module")
def lab() -> Iterator[FabricLab]:
    topology = leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2, port_gbps=0.1)
    with built(topology, "faults") as lab:
        yield lab


@pytest.fixture
def faults(lab: FabricLab) -> Iterator[LabFaults]:
    with LabFaults(lab) as faults:
        try:
            yield faults
        finally:
            faults.clear()


def arriving(lab: FabricLab, plane: int, uplink: int, *, count: int = COUNT) -> int:
    return send(lab, 0, 3, lab.wiring.plan.row(0, 3).address(ev_of(plane, uplink)), count=count).count


def test_a_silent_outage_keeps_the_carrier_and_forwards_nothing(lab: FabricLab, faults: LabFaults) -> None:
    link = link_number(lab, "t0/p0/0->t1/p0/1")
    faults.set(CUT, is_down=True)
    assert has_carrier(lab, link)
    assert has_carrier(lab, link ^ 1)
    got = send(lab, 0, 3, lab.wiring.plan.row(0, 3).address(ev_of(0, 1)), count=COUNT)
    assert (got.count, got.refused) == (0, 0)
    assert link in got.links
    assert [arriving(lab, plane, uplink) for plane, uplink in ((0, 0), (1, 0), (1, 1))] == [COUNT] * 3
    faults.clear()
    assert arriving(lab, 0, 1) == COUNT


def test_a_silent_outage_of_one_direction_leaves_the_other(lab: FabricLab, faults: LabFaults) -> None:
    faults.set("link:t0/p0/0->t1/p0/1", is_down=True)
    assert arriving(lab, 0, 1) == 0
    back = send(lab, 3, 0, lab.wiring.plan.row(3, 0).address(ev_of(0, 1)), count=COUNT)
    assert back.count == COUNT


def test_a_signalled_outage_takes_the_carrier_at_both_ends(lab: FabricLab, faults: LabFaults) -> None:
    link = link_number(lab, "t0/p0/0->t1/p0/1")
    faults.set(CUT, is_down=True, is_signalled=True)
    assert not has_carrier(lab, link)
    assert not has_carrier(lab, link ^ 1)
    assert [arriving(lab, 0, uplink) for uplink in (0, 1)] == [COUNT, 0]
    faults.clear()
    assert has_carrier(lab, link)
    assert has_carrier(lab, link ^ 1)
    assert arriving(lab, 0, 1) == COUNT
    assert send(lab, 3, 0, lab.wiring.plan.row(3, 0).address(ev_of(0, 1)), count=COUNT).count == COUNT


def test_a_port_without_carrier_is_told_to_who_sends(lab: FabricLab, faults: LabFaults) -> None:
    faults.set("nic-port:0/1", is_down=True, is_signalled=True)
    got = send(lab, 0, 3, lab.wiring.plan.row(0, 3).address(ev_of(1, 0)), count=COUNT)
    assert (got.count, got.refused, got.reason) == (0, COUNT, "Network is unreachable")
    assert arriving(lab, 0, 0) == COUNT
    faults.clear()
    assert arriving(lab, 1, 0) == COUNT


def test_a_lossy_link_loses_its_share_and_the_way_back_none(lab: FabricLab, faults: LabFaults) -> None:
    count, loss = 4000, 0.2
    faults.set("link:t0/p0/0->t1/p0/1", loss=loss)
    lost = count - arriving(lab, 0, 1, count=count)
    assert abs(lost - count * loss) < 6 * math.sqrt(count * loss * (1 - loss))
    assert arriving(lab, 0, 0) == COUNT
    assert send(lab, 3, 0, lab.wiring.plan.row(3, 0).address(ev_of(0, 1)), count=COUNT).count == COUNT


@pytest.mark.parametrize("is_signalled", [False, True], ids=["silent", "signalled"])
def test_a_dead_switch_takes_all_paths_over_it_and_no_others(
    lab: FabricLab, faults: LabFaults, is_signalled: bool
) -> None:
    faults.set("switch:t1/p1/0", is_down=True, is_signalled=is_signalled)
    alive = {(plane, uplink): arriving(lab, plane, uplink) for plane in (0, 1) for uplink in (0, 1)}
    assert alive == {(0, 0): COUNT, (0, 1): COUNT, (1, 0): 0, (1, 1): COUNT}
    faults.clear()
    assert arriving(lab, 1, 0) == COUNT


def test_a_slower_link_is_slower(lab: FabricLab, faults: LabFaults) -> None:
    faults.set("link:t0/p0/0->t1/p0/1", rate_share=0.2)
    address = lab.wiring.plan.row(0, 3).address(ev_of(0, 1))
    got = send(lab, 0, 3, address, count=1000, size_bytes=4000, pause_s=0.0)
    assert 0 < got.rate_mbps < 0.2 * 110


def test_routing_follows_what_is_signalled_and_nothing_else(lab: FabricLab, faults: LabFaults) -> None:
    def spread() -> Arrived:
        return send(lab, 0, 3, lab.wiring.plan.host_address(3), count=1280, flows=64, no_checksum=False)

    faults.set("link:t0/p0/1-t1/p0/0", is_down=True)
    faults.reroute()
    silent = spread()
    assert 0 < silent.count < 1280
    faults.set("link:t0/p0/1-t1/p0/0", is_down=True, is_signalled=True)
    assert spread().count < 1280  # far ends do not know yet
    faults.reroute()
    assert spread().count == 1280
    faults.set("nic-port:3/1", is_down=True, is_signalled=True)
    faults.reroute()
    assert spread().count == 1280
    faults.clear()
    after = spread()
    assert after.count == 1280
    assert link_number(lab, "t1/p0/0->t0/p0/1") in after.links
    assert link_number(lab, "t0/p1/1->nic/3") in after.links


def tables(lab: FabricLab) -> dict[str, list[str]]:
    """Everything a kernel forwards, shapes and filters by, in every node."""
    ask = "ip -6 route show table all; tc qdisc show; nft list ruleset | sed 's/packets [0-9]* bytes [0-9]*//'; ip link"
    return {
        slug: sorted(lab.shell.run(lab.shell.inside(slug, ["sh", "-c", ask])).splitlines())
        for slug in lab.wiring.slugs
    }


@pytest.mark.parametrize("nics", [4, 8])
def test_what_is_mended_is_as_it_was(nics: int) -> None:
    """Also where cables are parallel, as with 4 NICs, and where a killed command left them half broken."""
    with built(clos(nics, planes=2, radix=nics, port_gbps=0.1), "mended") as lab:
        at_first = tables(lab)
        with LabFaults(lab) as faults:
            for states in (
                {"is_down": True, "is_signalled": True},
                {"is_down": True},
                {"loss": 0.5, "rate_share": 0.5},
            ):
                faults.set("link:*-*", **states)
                faults.reroute()
                assert tables(lab) != at_first
                faults.clear()
                assert tables(lab) == at_first
            faults.set("link:*-*", is_down=True, is_signalled=True)
            faults.states = {link: LinkState(rate_share=0.5) for link in faults.states}
            faults.clear()
            assert tables(lab) == at_first


def test_a_script_is_carried_out_in_order_and_its_end_is_remembered(lab: FabricLab) -> None:
    table = {"kind": "link_down", "link": "t0/p0/0-t1/p0/1", "at_s": 0.05, "duration_s": 0.1, "silent": False}
    lasting = {"kind": "loss", "link": "t0/p1/0-t1/p1/1", "at_s": 0.1, "loss_percent": 50}
    script = LinkTimeline([parse_fault(table), parse_fault(lasting)], lab.record.topology).until(10**9)
    notices: list[FaultNotice] = []
    with LabFaults(lab, reroute_s=0.01, tell=notices.append) as faults:
        faults.run(script)
        kinds = [notice.kind for notice in notices if notice.kind != "reroute"]
        assert kinds == ["down", "loss", "up"]
        assert [notice.at_s >= due for notice, due in zip(notices, (0.05, 0.06), strict=False)] == [
            True,
            True,
        ]
    assert {lab.record.topology.link_name(link): state.text for link, state in link_states(lab).items()} == {
        "t0/p1/0->t1/p1/1": "loss 50 %",
        "t1/p1/1->t0/p1/0": "loss 50 %",
    }
    with LabFaults(lab) as faults:
        faults.clear()
    assert link_states(lab) == {}
    assert arriving(lab, 1, 1) == COUNT


def test_one_command_at_a_time_changes_a_lab(lab: FabricLab, faults: LabFaults) -> None:
    with pytest.raises(LabError, match="is being changed by another command"):
        LabFaults(lab)
    with pytest.raises(LabError, match="is being changed by another command"):
        lab.down()
    assert arriving(lab, 0, 0) == COUNT
