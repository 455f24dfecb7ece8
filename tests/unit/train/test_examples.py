"""The examples are configurations that can be run."""

from pathlib import Path

import pytest

from farstep.train import load_config

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_an_example_can_be_run(path: Path):
    config = load_config(path)
    assert config.num_ranks > 1
    assert f"farstep train examples/{path.name}" in path.read_text(encoding="utf-8")
    for fault in config.faults:
        assert fault.at_step is not None
        assert fault.at_step < config.run.steps


def test_there_are_examples():
    assert len(list(EXAMPLES.glob("*.toml"))) >= 2
