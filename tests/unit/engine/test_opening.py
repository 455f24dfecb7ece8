"""What two descriptors agree on."""

import dataclasses
import random
from types import SimpleNamespace

import pytest

from farstep import _native
from farstep.engine.descriptor import ConnectionDescriptor, PortDescriptor
from farstep.engine.opening import _set_life_cycle, _set_source_ports, join_ports, mtu_between
from farstep.engine.profile import EndpointProfile
from farstep.mrc.profiles import EvProfile


def end(host="10.0.0.1", *, site="", mtu_bytes=4096, is_mtu_fixed=False):
    port = PortDescriptor(host, 1, 0, None, 0, {})
    return ConnectionDescriptor(
        peer_id=0,
        site=site,
        qpn=2,
        start_psn=0,
        mtu_bytes=mtu_bytes,
        is_mtu_fixed=is_mtu_fixed,
        mpr=1,
        wimm=1,
        icrc=True,
        ports=(port,),
    )


def test_ports_of_a_plane_are_joined_and_others_are_not():
    assert join_ports([0, 1, 2], [2, 0]) == [(0, 1), (2, 0)]


def test_several_ports_of_a_plane_are_joined_each_to_each():
    assert join_ports([0, 0], [0, 0]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_without_a_common_plane_all_are_joined():
    assert join_ports([1, 2], [3]) == [(0, 0), (1, 0)]


def test_no_more_than_32_pairs_are_used():
    assert len(join_ports([0] * 8, [0] * 8)) == 32


def test_the_smaller_packet_size_wins_and_both_ends_agree():
    one, two = end(mtu_bytes=9000), end(mtu_bytes=1500)
    assert mtu_between(one, two) == mtu_between(two, one) == 1500


def test_packets_to_another_site_are_small_unless_both_ends_were_told_otherwise():
    far = [end(site="a"), end(site="b")]
    assert mtu_between(*far) == 1360
    told = [dataclasses.replace(e, is_mtu_fixed=True) for e in far]
    assert mtu_between(*told) == 4096
    assert mtu_between(far[0], told[1]) == mtu_between(told[1], far[0]) == 1360


@pytest.mark.parametrize("mtu_bytes", [64, 1360])
def test_a_small_packet_size_stays(mtu_bytes):
    assert mtu_between(end(site="a", mtu_bytes=mtu_bytes), end(site="b")) == mtu_bytes


def test_the_core_gets_what_the_profile_says_of_paths():
    ev = EvProfile(
        active_per_plane=4, backup_per_plane=2, skip_passes=7, restore_successes=3, share="capacity"
    )
    sockets = SimpleNamespace(source_port=lambda local, source: 40_000 + 100 * local + source)
    endpoint = SimpleNamespace(profile=EndpointProfile(ev=ev), _sources_per_port=6, _native=sockets)
    parameters = _native.ConnectionParameters()
    _set_life_cycle(parameters, ev, 2)
    _set_source_ports(parameters, endpoint, [(0, 0), (1, 0)], random.Random(1))
    found = (
        parameters.num_planes,
        parameters.skip_passes,
        parameters.restore_successes,
        parameters.capacity_share,
    )
    assert found == (2, 7, 3, True)
    assert _native.ConnectionParameters().skip_passes == EvProfile().skip_passes == 1
