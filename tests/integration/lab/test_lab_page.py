"""Every command of the page on labs is run, those too that other machines leave out."""

from pathlib import Path

import pytest

from tests.docs.examples import ROOT, examples_of
from tests.docs.test_documentation import check
from tests.integration.lab.lab_kit import WAIT_S, farstep, needs_lab, own_folder

pytestmark = [pytest.mark.netns, needs_lab]


@pytest.mark.timeout(300)
def test_the_examples_of_the_page_on_labs_work(tmp_path: Path) -> None:
    examples = examples_of(ROOT / "docs" / "guides" / "lab.md")
    assert any(example.skip for example in examples)
    with own_folder():
        try:
            for example in examples:
                check(example, tmp_path)
        finally:
            printed, _ = farstep("lab", "down", "--all").communicate(timeout=WAIT_S)
        assert printed == ""
    faults = (tmp_path / "faults.txt").read_text()
    assert "down, silent" in faults
    assert "sent and confirmed" in (tmp_path / "client.txt").read_text()
