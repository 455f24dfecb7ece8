"""Ports from a file of addresses."""

import json

import pytest

from farstep.engine import EngineError, PortConfig
from farstep.engine.address_file import fabric_ports, fabric_ports_here
from farstep.mrc.addressing import Attachment

TABLE = {
    "block": 0xFCBBBBBB,
    "planes": 2,
    "uplinks": 4,
    "hosts": [
        {
            "nic": nic,
            "leaf": 1,
            "downlink": nic,
            "ports": [
                {"plane": plane, "interface": f"p{plane}", "address": f"fd00:fab:{plane + 1}:1::{nic + 1}"}
                for plane in range(2)
            ],
        }
        for nic in range(2)
    ],
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "addresses.json"
    path.write_text(json.dumps(TABLE))
    return path


def test_every_plane_is_a_port_with_its_attachment(file):
    attachment = Attachment(block=0xFCBBBBBB, leaf=1, downlink=1, uplinks=4)
    assert fabric_ports(file, 1, port=7) == [
        PortConfig("[fd00:fab:1:1::2]:7", plane=0, attachment=attachment),
        PortConfig("[fd00:fab:2:1::2]:7", plane=1, attachment=attachment),
    ]


def test_the_environment_says_which(file):
    environment = {"FARSTEP_LAB_ADDRESSES": str(file), "FARSTEP_LAB_NIC": "0"}
    assert fabric_ports_here(environment) == fabric_ports(file, 0)
    assert fabric_ports_here({}) is None
    with pytest.raises(EngineError, match="FARSTEP_LAB_NIC = 'x' is no number of a NIC"):
        fabric_ports_here(environment | {"FARSTEP_LAB_NIC": "x"})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"gone\.json cannot be read \(No such file or directory\)"):
        fabric_ports(tmp_path / "gone.json", 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(TABLE), "have no NIC 2; valid is 0 to 1"),
        ("{", "cannot be used"),
        ("[]", "cannot be used"),
        (json.dumps(TABLE | {"hosts": [{}] * 3}), "lack 'leaf'"),
        (json.dumps(TABLE | {"hosts": [TABLE["hosts"][0]] * 3, "block": -1}), "cannot be used .block = -1"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, text, said):
    path = tmp_path / "addresses.json"
    path.write_text(text)
    with pytest.raises(EngineError, match=said):
        fabric_ports(path, 2)
