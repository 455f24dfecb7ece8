"""The file of the stand-alone emulator, and what is said when it is wrong."""

import pytest

from farstep.fabric import ConfigError
from farstep.lab.__main__ import main
from farstep.lab.standalone import load_emulation, split_address

GOOD = """
sites = ["east", "west"]

[[paths]]
name = "north"
rate_mbps = 100

[[expose]]
site = "west"
address = "127.0.0.1:9000"
listen = { east = "127.0.0.1:7000" }

[[faults]]
kind = "path_down"
path = "north"
at_s = 1
"""


def load(tmp_path, text):
    file = tmp_path / "net.toml"
    file.write_text(text)
    return load_emulation(file)


def test_a_file_holds_network_ports_and_faults(tmp_path):
    file = load(tmp_path, GOOD)
    assert file.sites == ("east", "west")
    assert file.expose[0].can_answer
    assert file.faults[0].at_s == 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('address = "127.0.0.1:9000"', 'address = "9000"', "expose[0].address"),
        ('"127.0.0.1:7000"', '"127.0.0.1:70000"', "port in 0..65535"),
        ("[[expose]]", "[[exposed]]", "did you mean expose?"),
        ('path = "north"', 'path = "south"', 'path = "south": no such path; known paths: north'),
        ("at_s = 1", "", "faults[0] (path_down) needs at_s or at_step"),
        ("rate_mbps = 100", 'rate_mbps = "fast"', 'paths[0].rate_mbps = "fast"'),
        (
            'site = "west"',
            'site = "north"',
            'expose[0].site = "north": no such site; known sites: east, west',
        ),
        ("{ east =", "{ east2 =", 'expose[0].listen.east2 = "east2": no such site'),
        ('site = "west"', 'site = "west"\nplane = 3', "expose[0].plane = 3: no path of this plane"),
        ('["east", "west"]', '["east"]', "sites: number of entries = 1; valid: at least 2"),
    ],
)
def test_a_mistake_is_told_with_the_name_of_the_file(tmp_path, old, new, told):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_the_command_tells_mistakes_without_a_traceback(tmp_path, capsys):
    assert main([str(tmp_path / "missing.toml")]) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}/missing.toml: cannot be read: No such file or directory\n"
    )


def test_addresses_are_split_at_the_last_colon():
    assert split_address("host.example:80") == ("host.example", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    for wrong in ("", "host", ":80", "host:", "host:x", "host:65536", "host:-1"):
        with pytest.raises(ValueError, match="write"):
            split_address(wrong)
