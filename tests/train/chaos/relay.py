"""The way between a member and its coordinator, which can be cut, one way or both, without privileges.

A TCP relay for each member. What is held back arrives once the way is open again, as TCP would have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Literal

__all__ = ["Relays"]

Way = Literal["up", "down"]

SETTLE_S = 0.05
"""asyncio loses a connection that it has accepted when its server is closed in the same moment."""


class _Relay:
    """One member's way."""

    def __init__(self) -> None:
        self.server: asyncio.Server | None = None
        self.port = 0
        self.is_open = {"up": asyncio.Event(), "down": asyncio.Event()}
        for event in self.is_open.values():
            event.set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()


class Relays:
    """All members' ways, on an event loop of their own thread.

    Attributes:
        upstream: port of the coordinator; 0 while there is none.
    """

    def __init__(self) -> None:
        self.upstream = 0
        self._relays: dict[str, _Relay] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def open(self, name: str) -> int:
        """Makes a way, or moves it to another port; returns the port."""
        return self._call(self._open(name))

    def block(self, name: str, *ways: Way) -> None:
        """Lets nothing through."""
        self._loop.call_soon_threadsafe(lambda: [self._relays[name].is_open[way].clear() for way in ways])

    def unblock(self, name: str) -> None:
        """Lets everything through, first what was held back."""
        self._loop.call_soon_threadsafe(lambda: [e.set() for e in self._relays[name].is_open.values()])

    def cut(self, name: str) -> None:
        """Breaks what is connected; it may connect again at once."""
        self._loop.call_soon_threadsafe(lambda: _break(self._relays[name]))

    def close(self) -> None:
        """Ends all ways."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _open(self, name: str) -> int:
        relay = self._relays.setdefault(name, _Relay())
        before = relay.server

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            relay.writers.add(writer)  # the task may be cancelled before it has begun
            task = asyncio.create_task(self._serve(relay, reader, writer))
            relay.tasks.add(task)
            task.add_done_callback(relay.tasks.discard)

        relay.server = await asyncio.start_server(connected, "127.0.0.1", 0)
        relay.port = relay.server.sockets[0].getsockname()[1]
        if before is not None:
            await _end([before])
        return relay.port

    async def _serve(self, relay: _Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_writer: asyncio.StreamWriter | None = None
        try:
            await relay.is_open["up"].wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
            relay.writers.add(far_writer)
            pumps = [
                asyncio.create_task(_pump(reader, far_writer, relay.is_open["up"])),
                asyncio.create_task(_pump(far_reader, writer, relay.is_open["down"])),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # no coordinator there
        finally:
            for end in (writer, far_writer):
                if end is not None:
                    relay.writers.discard(end)
                    end.close()

    async def _close(self) -> None:
        await _end([relay.server for relay in self._relays.values() if relay.server is not None])
        for relay in self._relays.values():
            for event in relay.is_open.values():
                event.set()
        writers = {writer for relay in self._relays.values() for writer in relay.writers}
        tasks = [task for relay in self._relays.values() for task in relay.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()  # whatever has not been read yet
        await asyncio.sleep(SETTLE_S)  # aborted transports close in the next turn


async def _end(servers: list[asyncio.Server]) -> None:
    loop = asyncio.get_running_loop()
    for server in servers:
        for listener in server.sockets:
            loop.remove_reader(listener.fileno())  # accepts nobody any more
    await asyncio.sleep(SETTLE_S)
    for server in servers:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            await is_open.wait()
            writer.write(data)
            await writer.drain()
        await is_open.wait()  # the end travels like everything else


def _break(relay: _Relay) -> None:
    for writer in list(relay.writers):
        writer.transport.abort()
