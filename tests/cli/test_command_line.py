"""The command as a user meets it: what goes where, exit statuses, and how long help takes."""

import subprocess
import sys
import time

import pytest

from farstep import __version__
from farstep.cli.errors import CommandError


def farstep(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farstep", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("-h",), ("train", "--help"), ("lab",), ("report", "--help")]
)
def test_help_is_data(arguments):
    done = farstep(*arguments)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("--version",), ("version",)])
def test_the_version_is_printed(arguments):
    done = farstep(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"farstep {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("trian",), "error: no such command 'trian'. Did you mean 'train'"),
        (("train", "--stpes", "3"), "error: no such option: --stpes"),
        (("train", "--steps", "0"), "error: command line: run.steps = 0: must be an integer at least 1"),
        (("train", "--steps", "ten"), "error: invalid value for '--steps'"),
        (("train", "none.toml"), "error: none.toml: cannot be read: No such file or directory"),
        (
            ("train", "--text", "none.txt"),
            "error: none.txt: data.text cannot be read: No such file or directory",
        ),
        (("report", "none"), "error: "),
        (("lab", "nothing"), "error: no such command 'nothing'"),
        (("lab", "emulate", "net.toml", "--for-s", "inf"), "error: invalid value for '--for-s'"),
        (("lab", "emulate", "none.toml"), "error: none.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(tmp_path, arguments, error):
    done = farstep(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(error)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert sum(line.startswith("error:") for line in done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_the_file_names_it(tmp_path):
    (tmp_path / "run.toml").write_text("[netwrok]\n")
    done = farstep("train", "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: run.toml: netwrok = a table: unknown key; did you mean network?\n"


@pytest.mark.parametrize("host", ["no such host", "203.0.113.9", "127.0.0.1:9000", "x" * 70 + ".example"])
def test_an_address_that_the_ranks_cannot_bind_is_told_before_they_start(tmp_path, host):
    (tmp_path / "run.toml").write_text(f'[network]\nbind_host = "{host}"\n')
    done = farstep("train", "run.toml", "--out", "runs", cwd=tmp_path)
    assert done.returncode == 2
    shown = host if len(host) <= 50 else host[:20]
    assert done.stderr.startswith(f'error: network.bind_host = "{shown}')
    assert ": must be an address of this machine (" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_name_in_another_encoding_is_told_so(tmp_path):
    done = farstep("train", "--text", "\udcff.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(": must be UTF-8 text\n")


def test_the_configuration_shown_is_one_that_can_be_run(tmp_path):
    shown = farstep("train", "--show-config", "--steps", "50")
    assert shown.returncode == 0
    assert "steps = 50" in shown.stdout
    (tmp_path / "run.toml").write_text(shown.stdout)
    again = farstep("train", "run.toml", "--show-config", cwd=tmp_path)
    assert again.stdout == shown.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "run.toml"]


def test_an_output_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    done = farstep("train", "--out", "file", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('error: run.out = "file": no folder can be made there: ')


def test_the_emulator_runs_by_itself_for_as_long_as_it_is_told(tmp_path):
    (tmp_path / "network.toml").write_text(
        'sites = ["a", "b"]\n[[paths]]\nname = "north"\n[[expose]]\nsite = "b"\naddress = "127.0.0.1:9"\n'
    )
    done = farstep("lab", "emulate", "network.toml", "--for-s", "0.1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a reaches 127.0.0.1:9 at b (plane 0) at 127.0.0.1:" in done.stdout
    assert "a -> b" in done.stdout


def test_the_doctor_says_what_the_machine_offers():
    done = farstep("doctor")
    assert done.returncode == 0
    for word in (
        "kernel",
        "UDP GSO",
        "UDP GRO",
        "receive buffer limit",
        "send buffer limit",
        "cores",
        "encryption",
        "torch",
    ):
        assert word in done.stdout


def test_ctrl_c_while_the_command_is_loaded_is_no_error():
    script = (
        "import importlib.abc, sys\n"
        "class Interrupted(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from farstep.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.fixture
def ended(tmp_path):
    """Concludes a run of which one record was heard; the event log holds nothing."""
    from farstep.cli import train
    from farstep.observe.events import Record, RunEnd
    from farstep.observe.timeline import Timeline
    from farstep.train import RunResult

    def conclude(**fields):
        told = {"status": "finished", "steps": 1, "final_loss": 1.0, "held_out_loss": 1.0}
        told |= {"replica_hashes": {"east-0": "ab", "west-0": "ab"}, "reason": None} | fields
        failure = told.pop("log_failure", None)
        timeline = Timeline.of([Record(1, "", None, RunEnd.model_validate(told))])
        result = RunResult(folder=tmp_path, log_failure=failure, **told)
        with pytest.raises(CommandError) as caught:
            train._conclude(result, timeline, with_report=True)
        return caught.value

    return conclude


def test_ctrl_c_while_the_report_is_written_says_how_to_get_it(ended, tmp_path, monkeypatch, capsys):
    def interrupted(run, out=None):
        raise KeyboardInterrupt

    monkeypatch.setattr("farstep.cli.report.write_report_of", interrupted)
    error = ended()
    assert (str(error), error.status) == ("stopped while writing the report", 130)
    assert error.hint == f"farstep report {tmp_path}"
    assert "bit-identical" in capsys.readouterr().out  # the summary came first


def test_a_full_disk_takes_nothing_from_the_summary(ended, tmp_path, capsys):
    error = ended(log_failure="No space left on device")
    assert (str(error), error.status) == (
        f"event log {tmp_path / 'events.jsonl'} breaks off: No space left on device",
        4,
    )
    assert "bit-identical" in capsys.readouterr().out


def test_why_a_run_failed_is_not_hidden_by_a_report_that_cannot_be_written(ended, capsys):
    error = ended(status="failed", reason="rank 2 was killed by SIGKILL")
    assert (str(error), error.status) == ("rank 2 was killed by SIGKILL", 3)
    assert "error: cannot read event log" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("train", "--show-config"), ("--help",), ("doctor",)])
def test_a_full_disk_behind_standard_output_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "farstep", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (4, "error: cannot write: No space left on device\n")


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m farstep train --show-config | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("# ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("code", "limit_s"), [("import farstep", 0.3), ("from farstep.cli.app import main", 0.5)]
)
def test_starting_is_quick_and_loads_nothing_heavy(code: str, limit_s: float):
    heavy = "{'torch', 'numpy', 'pydantic', 'plotly', 'rich'}"
    script = f"import sys; {code}; print(sorted({heavy} & set(sys.modules)))"
    times = []
    for _ in range(3):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
        times.append(time.monotonic() - began)
        assert done.stdout == "[]\n"
    assert min(times) < limit_s


def test_help_is_quick():
    times = []
    for _ in range(3):
        began = time.monotonic()
        farstep("--help")
        times.append(time.monotonic() - began)
    assert min(times) < 0.5
