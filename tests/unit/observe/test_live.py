import io
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from rich.console import Console

from farstep.observe.events import PathState
from farstep.observe.live import LiveDisplay
from tests.unit.observe.fake_run import CUT_PATH, fake_run, with_loss

RUN = tuple(fake_run())


def lines_of(display: LiveDisplay) -> list[str]:
    file = display.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def screen_of(width: int, height: int, until_s: float, *, ascii_only: bool = False) -> list[str]:
    """The text of one frame, without a terminal's control sequences."""
    file = io.StringIO()
    display = LiveDisplay(Console(file=io.StringIO(), width=width, height=height), plain=False)
    for record in RUN:
        if record.t_s < until_s:
            display.on_record(record)
    plain = Console(file=file, width=width, height=height, legacy_windows=False)
    if ascii_only:
        display.console = Console(file=io.TextIOWrapper(io.BytesIO(), "ascii"), width=width, height=height)
    plain.print(display._screen())
    return file.getvalue().rstrip("\n").splitlines()


def test_without_a_terminal_there_is_one_line_every_few_steps() -> None:
    display = LiveDisplay(Console(file=io.StringIO(), width=80), plain_every_steps=50)
    assert display.is_plain
    with display:
        for record in RUN:
            display.on_record(record)
    lines = lines_of(display)
    steps = [line for line in lines if "/400 steps" in line]
    shown = [int(line.split("]")[1].split("/")[0]) for line in steps]
    assert shown == [1, *range(50, 401, 50)]
    assert all("P50/P99/P100" in line and "tokens/s" in line and "resent" in line for line in steps)
    assert any(line.endswith(f"fault: path down · path {CUT_PATH}") for line in lines)
    assert any(line.endswith(f"path {CUT_PATH}: GOOD → ASSUMED_BAD (timeout)") for line in lines)
    assert any(line.endswith(f"fault over: path down · path {CUT_PATH}") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_change_of_state_is_told_once_and_not_by_every_rank() -> None:
    display = LiveDisplay(Console(file=io.StringIO()), plain=True)
    for record in RUN:
        display.on_record(record)
    changes = [line for line in lines_of(display) if " → " in line]
    assert len(changes) == 2


def test_a_loss_and_who_goes_on_are_told_once() -> None:
    display = LiveDisplay(Console(file=io.StringIO(), width=100), plain=True)
    for record in with_loss(list(RUN)):
        display.on_record(record)
    told = [line.partition("] ")[2] for line in lines_of(display) if "rank 3" in line or "goes on" in line]
    assert told == [
        "step 100: rank 3 (b-1) was killed by SIGKILL",
        "step 100: training goes on with 3 replica groups (b-1 is gone)",
    ]


def test_the_screen_shows_progress_figures_paths_and_faults() -> None:
    text = "\n".join(screen_of(120, 32, until_s=40))
    assert re.search(r"1\d\d of 400 steps", text)
    assert "left" in text
    for name in ("loss", "held-out loss", "tokens/s", "step P50", "P99", "P100", "resent"):
        assert name in text
    row = next(line for line in text.splitlines() if f"path {CUT_PATH} " in line)
    assert PathState.ASSUMED_BAD.value in row
    assert "0 B/s" in row
    assert "fault: path down" in text


@pytest.mark.parametrize(("width", "height"), [(120, 32), (80, 24), (56, 14), (200, 60), (40, 10), (30, 6)])
@pytest.mark.parametrize("until_s", [0.0, 0.01, 3.0, 60.0, 1000.0])
def test_a_frame_fits_its_terminal(width: int, height: int, until_s: float) -> None:
    lines = screen_of(width, height, until_s)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width


def test_where_not_all_paths_fit_the_bad_ones_are_shown() -> None:
    text = "\n".join(screen_of(120, 18, until_s=40))
    assert f"path {CUT_PATH} " in text
    assert "more paths, all GOOD" in text


def test_a_terminal_without_block_characters_gets_none() -> None:
    text = "\n".join(screen_of(120, 32, until_s=20, ascii_only=True))
    assert not set(text) & set("▁▂▃▄▅▆▇█╭╰│")


def test_lines_must_come_at_some_distance() -> None:
    with pytest.raises(ValueError, match="plain_every_steps"):
        LiveDisplay(plain_every_steps=0)


PROGRAM = """
import time
from farstep.observe.live import LiveDisplay
with LiveDisplay() as display:
    time.sleep(60)
"""


def test_ctrl_c_gives_the_terminal_back() -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    ) as process:
        os.close(terminal)
        seen = b""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if not select.select([controller], [], [], 1.0)[0]:
                continue
            try:
                seen += os.read(controller, 65536)
            except OSError:  # the last process at the other end is gone
                break
            if b"waiting for the run" in seen and b"\x03" not in seen and process.poll() is None:
                os.write(controller, b"\x03")
                seen += b"\x03"  # noted, so that it is typed once
        process.wait(timeout=30)
    os.close(controller)
    enters, leaves = seen.rfind(b"\x1b[?1049h"), seen.rfind(b"\x1b[?1049l")
    assert 0 <= enters < leaves
    assert seen.rfind(b"\x1b[?25l") < seen.rfind(b"\x1b[?25h")
    assert b"KeyboardInterrupt" in seen[leaves:]
