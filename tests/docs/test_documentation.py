import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples import ROOT, Example, examples_of, is_as_shown, pages

TIMEOUT_S = 60
SLOW_TIMEOUT_S = 300


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


PAGES = [pytest.param(page, id=page_id(page)) for page in pages()]


def run(command: list[str], directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "COLUMNS": "100", "PYTHONWARNINGS": "default"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a program's children must not outlive it
            printed, _ = process.communicate()
            pytest.fail(f"{' '.join(command)}: not through after {timeout_s} s; so far:\n{printed}")
    return subprocess.CompletedProcess(command, process.returncode, printed, "")


def check(example: Example, directory: Path) -> None:
    """Runs one example and compares what it prints with what the page shows."""
    timeout_s = SLOW_TIMEOUT_S if example.is_slow else TIMEOUT_S
    if example.file is not None:
        (directory / example.file).write_text(example.code, encoding="utf-8")
    elif example.language == "python":
        program = directory / "example.py"
        program.write_text(example.code, encoding="utf-8")
        done = run([sys.executable, str(program)], directory, timeout_s)
        assert done.returncode == 0, f"{example.where}:\n{done.stdout}"
    elif example.language == "bash":
        done = run(["bash", "-euc", example.code], directory, timeout_s)
        assert done.returncode == 0, f"{example.where}:\n{done.stdout}"
    for command in example.commands:
        done = run(["bash", "-c", command.text], directory, timeout_s)
        assert done.returncode == 0, f"{example.where}: {command.text}\n{done.stdout}"
        if command.output.strip():
            different = f"{example.where}: {command.text}\nshown:\n{command.output}\nprinted:\n{done.stdout}"
            assert is_as_shown(command.output, done.stdout), different


def run_page(page: Path, directory: Path, *, with_slow: bool) -> int:
    count = 0
    for example in examples_of(page):
        if example.skip is None and (with_slow or not example.is_slow):
            check(example, directory)
            count += 1
    return count


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_work(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path, with_slow=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page_id(page))
        for page in pages()
        if any(example.is_slow for example in examples_of(page))
    ],
)
def test_the_long_examples_of_a_page_work(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path, with_slow=True) > 0


def test_pages_have_examples_that_run() -> None:
    examples = [example for page in pages() for example in examples_of(page)]
    assert sum(example.skip is None for example in examples) >= 5


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        path = page.parent / target.split("#")[0]
        assert path.exists(), f"{page_id(page)}: {target}"


def test_an_example_is_told_what_to_do_with_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- skip: no network -->\n```console\n$ curl x\n```\n"
        "<!-- slow -->\n\n```console\n$ a  # why\nout\n...\n$ b\n```\n"
        "<!-- file: x.py -->\n```python\npass\n```\n"
        "text\n```python\n1 / 0\n```\n```toml\na = 1\n```\n"
    )
    skipped, slow, file, program = examples_of(page)
    assert skipped.skip == "no network"
    assert slow.is_slow
    assert [(c.text, c.output) for c in slow.commands] == [("a", "out\n...\n"), ("b", "")]
    assert (file.file, file.code) == ("x.py", "pass\n")
    assert (program.skip, program.is_slow, program.file) == (None, False, None)


@pytest.mark.parametrize(
    "text",
    ["```console\n$ a\n", "```console\nno command\n```\n", "<!-- skip -->\n", "<!-- file -->\n"],
)
def test_a_page_with_a_slip_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(ValueError, match=r"page\.md:1: "):
        examples_of(tmp_path / "page.md")


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a b\n", "a  b\n", True),
        ("a ...\n", "a\n", False),
        ("a...\n", "a\n", True),
        ("...", "", True),
        ("0.... s  done\n", "  0.501 s  done\n", True),
        ("0.... s  done\n", "1.501 s  done\n", False),
        ("first\n...\nlast\n", "first\nsecond\nthird\nlast\n", True),
        ("[run]\n...\n", "[runs]\nx\n", False),
        ("a+b?\n", "a+b?\n", True),
    ],
)
def test_what_is_printed_is_compared_with_what_is_shown(shown: str, printed: str, expected: bool) -> None:
    assert is_as_shown(shown, printed) is expected


def test_an_example_that_fails_or_prints_something_else_is_noticed(tmp_path: Path) -> None:
    cases = ["```python\n1 / 0\n```", "```bash\nfalse\ntrue\n```", "```console\n$ echo a\nb\n```"]
    for case in cases:
        page = tmp_path / "page.md"
        page.write_text(case + "\n")
        (example,) = examples_of(page)
        shown_at_root = Example(
            ROOT / "README.md", 1, example.language, example.code, commands=example.commands
        )
        with pytest.raises(AssertionError):
            check(shown_at_root, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    assert shutil.which("sphinx-build", path=str(Path(sys.executable).parent)), "install the extra `dev`"
    done = run(
        ["sphinx-build", "-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), "html"], tmp_path, 500
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "html" / "index.html").exists()
