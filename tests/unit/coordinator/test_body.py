"""The coordinator's clock."""

import asyncio
import time

from farstep.coordinator.body import Coordinator
from farstep.membership.effects import Note
from farstep.membership.records import MembershipConfig


def test_time_before_it_was_started_is_no_pause():
    """Certificates, imports and the server take a while between its making and its first tick."""
    coordinator = Coordinator(MembershipConfig(settle_s=0.05))
    notes: list[Note] = []
    coordinator.listeners.append(notes.append)
    time.sleep(0.4)

    async def serve() -> None:
        coordinator.start()
        await asyncio.sleep(0.05)
        time.sleep(0.4)  # this is one
        await asyncio.sleep(0.05)
        coordinator.stop()

    asyncio.run(serve())
    assert [note.kind for note in notes] == ["coordinator_start", "coordinator_paused"]
    assert notes[1].fields["pause_s"] > 0.2
