"""The fabric of a lab is read from what the simulator reads, and mistakes in it are named."""

import re
from pathlib import Path

import pytest

from farstep.fabric import ConfigError
from farstep.fabric.topology.build import PRESETS
from farstep.lab.fabric.description import load_fabric
from farstep.lab.fabric.options import LabOptions
from farstep.lab.fabric.places import LabRecord, check_name, lab_names, lock
from farstep.lab.fabric.wiring import FabricWiring
from farstep.sim.scenario import load_scenario

SCENARIOS = sorted((Path(__file__).parents[4] / "examples" / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_fabric_of_a_scenario_is_that_of_the_simulator(path: Path) -> None:
    fabric, simulated = load_fabric(str(path)), load_scenario(path).topology
    assert (fabric.name, fabric.num_nodes, fabric.num_links) == (
        simulated.name,
        simulated.num_nodes,
        simulated.num_links,
    )
    assert (fabric.link_target == simulated.link_target).all()


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("lab-")])
def test_presets_for_labs_can_be_built(name: str) -> None:
    wiring = FabricWiring(load_fabric(name), LabOptions())
    assert f"{wiring.topology.num_nics}" == name.partition("-")[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fabric.toml: fabric: this table is required, with a kind: clos,"),
        (
            "[fabrik]\n",
            'fabric.toml: no key "fabrik" here; did you mean fabric? valid keys: fabric, transport,',
        ),
        ("[fabric]\nnics = 4\n", "fabric.toml: fabric.kind: this key is required; valid: clos,"),
        (
            '[fabric]\nkind = "clus"\n',
            'fabric.toml: fabric.kind = "clus": no such network; did you mean clos?',
        ),
        ('[fabric]\nkind = "clos"\nnic = 4\n', "fabric.toml: fabric.nic: a network of kind"),
        ('[fabric]\nkind = "clos"\nnics = 4\nplanes = 0\n', "fabric.toml: fabric.planes = 0"),
        ('[fabric]\nkind = "clos"\nnics = 4\nport_gbps = "x"\n', "fabric.toml: fabric.port_gbps"),
        ('[fabric]\nkind = "file"\npath = "none.json"\n', "none.json: cannot be read"),
        ("[fabric\n", "fabric.toml: is not valid TOML"),
        ("[[switches]]\nnam = 1\n", "fabric.toml: switches[0]"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_fabric(str(path))
    assert said in str(caught.value).replace(f"{tmp_path}/", "")


def test_a_name_that_is_none_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r'"lab-5": no such file, and no such preset; presets: .*lab-4'):
        load_fabric("lab-5")


# ---- records --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARSTEP_LAB_FOLDER", str(tmp_path / "labs"))
    return tmp_path / "labs"


def test_a_record_gives_back_the_same_network(folder: Path) -> None:
    topology = load_fabric("lab-8")
    LabRecord(
        name="one", topology=topology, options=LabOptions(mark_ms=2.0), is_rootless=False, keeper_pid=1
    ).save()
    assert lab_names() == ["one"]
    found = LabRecord.load("one")
    assert (found.name, found.options.mark_ms, found.is_up) == ("one", 2.0, False)
    assert not found.keeper_is_alive  # there is such a process, but it began at another time
    for link in range(topology.num_links):
        assert found.topology.link_name(link) == topology.link_name(link)
    changed = found.with_changes(is_up=True)
    assert LabRecord.load("one").is_up
    changed.forget()
    assert lab_names() == []


def test_the_folder_of_labs_goes_with_the_last_lock(folder: Path) -> None:
    with lock("one"):
        assert folder.exists()
    assert not folder.exists()
    assert folder.parent.exists()


@pytest.mark.parametrize("name", ["", "a-b", "A", "x" * 25, "a/b", ".."])
def test_names_that_could_be_taken_for_others_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("valid: 1 to 24 of a-z, 0-9 and _")):
        check_name(name)
