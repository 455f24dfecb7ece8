from collections.abc import Iterator

import pytest

from tests.integration.coordinator import processes


@pytest.fixture
def stage() -> Iterator[processes.Stage]:
    with processes.stage() as made:
        yield made
