"""The emulator's own process: one loop that forwards, runs the fault script and answers control requests.

It ends on request, on SIGTERM, or when its parent dies.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from farstep.fabric import EmulatedNetwork, FaultScript, parse_fault
from farstep.lab.control import ControlServer, RequestError, Result
from farstep.lab.forwarder import Forwarder
from farstep.lab.poller import Poller
from farstep.lab.script_clock import ScriptClock
from farstep.lab.sockets import Address
from farstep.lab.timer import Timer, raise_priority, reduce_timer_slack

GC_THRESHOLD = 100_000
"""Allocations between collections: packets make no reference cycles, so rare collections suffice."""


class EmulatorProcess:
    """Everything the emulator consists of.

    Args:
        network: sites and paths to emulate.
        control_path: where to create the control socket.
        listen_host: address at which peers reach the emulator.
        parent_pid: process whose death ends the emulator; None: run until told to stop.

    Raises:
        OSError: a socket cannot be created.
    """

    def __init__(
        self,
        network: EmulatedNetwork,
        control_path: str,
        *,
        listen_host: str = "127.0.0.1",
        parent_pid: int | None = None,
    ) -> None:
        self.network = network
        self._is_stopping = False
        self._wakeups = 0
        self._started_ns = time.monotonic_ns()
        self._poller = Poller()
        self._timer = Timer()
        self._poller.add(self._timer.fd, self._timer.acknowledge, only_news=True)
        self.forwarder = Forwarder(network, self._poller, listen_host)
        self.control = ControlServer(control_path, self._poller, self._handlers())
        self.script = ScriptClock(network, self.forwarder, self._publish)
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        """Also told of every event."""
        self._parent_fd = self._watch_parent(parent_pid)
        self._signal_fds = self._watch_signals(ignores_interrupt=parent_pid is not None)

    def run(self, *, for_s: float | None = None) -> dict[str, Any]:
        """Forwards until told to stop, then closes everything.

        Args:
            for_s: stops by itself after this many seconds.

        Returns:
            The final `stats`.
        """
        stop_ns = None if for_s is None else time.monotonic_ns() + round(for_s * 1e9)
        reduce_timer_slack()
        raise_priority()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        forwarder, script, timer, poller = self.forwarder, self.script, self._timer, self._poller
        while not self._is_stopping:
            release_ns, script_ns = forwarder.next_due_ns, script.next_due_ns
            due_ns = release_ns
            for other_ns in (script_ns, stop_ns):
                if other_ns is not None and (due_ns is None or other_ns < due_ns):
                    due_ns = other_ns
            if due_ns is not None:
                now_ns = time.monotonic_ns()
                if stop_ns is not None and stop_ns <= now_ns:
                    break
                if script_ns is not None and script_ns <= now_ns:
                    script.advance()
                if release_ns is not None and release_ns <= now_ns:
                    forwarder.release(now_ns)
                    continue
            timer.arm(due_ns)
            poller.wait()
            self._wakeups += 1
        stats = self.stats()
        self.close()
        return stats

    def stop(self) -> None:
        """Makes `run` return."""
        self._is_stopping = True

    def _publish(self, event: dict[str, Any]) -> None:
        self.control.publish(event)
        if self.on_event is not None:
            self.on_event(event)

    def close(self) -> None:
        """Gives everything back; `run` does so at its end."""
        self.forwarder.close()
        self.control.close()
        self._timer.close()
        signal.set_wakeup_fd(-1)
        for fd in (*self._signal_fds, self._parent_fd):
            if fd is not None:
                os.close(fd)
        self._poller.close()

    def _watch_parent(self, parent_pid: int | None) -> int | None:
        if parent_pid is None:
            return None
        try:
            fd = os.pidfd_open(parent_pid)
        except ProcessLookupError:
            self._is_stopping = True
            return None
        self._poller.add(fd, self.stop)
        return fd

    def _watch_signals(self, *, ignores_interrupt: bool) -> tuple[int, int]:
        """Turns signals into a readable descriptor: a handler alone would not end the wait for packets."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup stays in force
            signal.signal(signal.SIGHUP, (lambda *_: None) if ignores_interrupt else lambda *_: self.stop())
        if ignores_interrupt:
            # Whoever interrupts this process by hand must not take the network from under the parent.
            signal.signal(signal.SIGINT, lambda *_: None)
        else:
            signal.signal(signal.SIGINT, lambda *_: self.stop())
        self._poller.add(reading, lambda: self._drain(reading))
        return reading, writing

    @staticmethod
    def _drain(fd: int) -> None:
        os.read(fd, 4096)

    # -- control operations -------------------------------------------------------------------------------

    def _handlers(self) -> dict[str, Any]:
        return {
            "ping": lambda request: {"pid": os.getpid(), "network": self.network.model_dump(mode="json")},
            "expose": self._expose,
            "withdraw": self._withdraw,
            "load": self._load,
            "apply": self._apply,
            "notify_step": self._notify_step,
            "stats": lambda request: self.stats(),
            "stop": self._stop,
        }

    def _expose(self, request: Mapping[str, Any]) -> Result:
        site, plane, address = _endpoint(request)
        listen = {
            name: _address(value, f"listen.{name}") for name, value in _table(request, "listen").items()
        }
        can_answer = _value(request, "can_answer", bool, False)
        return {
            name: list(reachable)
            for name, reachable in self.forwarder.expose(
                site, plane, address, listen=listen, can_answer=can_answer
            ).items()
        }

    def _withdraw(self, request: Mapping[str, Any]) -> Result:
        return self.forwarder.withdraw(*_endpoint(request))

    def _load(self, request: Mapping[str, Any]) -> Result:
        source = _value(request, "source", str, "fault script")
        script = FaultScript.parse({"faults": request.get("faults", [])}, source=source)
        self.script.load(script.faults, source)
        return len(script.faults)

    def _apply(self, request: Mapping[str, Any]) -> Result:
        return self.script.inject(parse_fault(_table(request, "fault")))

    def _notify_step(self, request: Mapping[str, Any]) -> Result:
        step = _value(request, "step", int, None)
        if step < 0:
            raise RequestError(f"step = {step}: must be 0 or more")
        return self.script.reach_step(step)

    def _stop(self, request: Mapping[str, Any]) -> Result:
        self.stop()
        return True

    def stats(self) -> dict[str, Any]:
        """Returns what happened so far, per channel and as a whole; JSON types only."""
        now_ns = time.monotonic_ns()
        return {
            "monotonic_ns": now_ns,
            "elapsed_s": (now_ns - self._started_ns) / 1e9,
            "cpu_s": time.process_time(),
            "wakeups": self._wakeups,
            "overflow_packets": self.forwarder.overflow_packets,
            "undeliverable_packets": self.forwarder.undeliverable_packets,
            "active_faults": list(self.script.active_faults),
            "channels": [
                {
                    "path": carrier.channel.path,
                    "plane": carrier.channel.plane,
                    "from_site": carrier.channel.from_site,
                    "to_site": carrier.channel.to_site,
                    "is_down": carrier.state.is_down,
                    "queue_bytes": carrier.queue_bytes(now_ns),
                    "in_flight_packets": carrier.in_flight,
                    "offered_packets": carrier.counters.offered_packets,
                    "offered_bytes": carrier.counters.offered_bytes,
                    "delivered_packets": carrier.counters.delivered_packets,
                    "delivered_bytes": carrier.counters.delivered_bytes,
                    "ecn_marked": carrier.counters.ecn_marked,
                    "duplicated": carrier.counters.duplicated,
                    "corrupted": carrier.counters.corrupted,
                    "reordered": carrier.counters.reordered,
                    "drops": dict(carrier.counters.drops),
                    "late_us_mean": carrier.counters.late_ns_sum / max(1, carrier.counters.releases) / 1e3,
                    "late_us_max": carrier.counters.late_ns_max / 1e3,
                }
                for carrier in self.forwarder.carriers.values()
            ],
        }


def _value(request: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = request.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RequestError(f"{key} = {value!r}: must be of type {kind.__name__}")
    return value


def _table(request: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = request.get(key, {})
    if not isinstance(value, dict):
        raise RequestError(f"{key} = {value!r}: must be an object")
    return value


def _endpoint(request: Mapping[str, Any]) -> tuple[str, int, Address]:
    return (
        _value(request, "site", str, None),
        _value(request, "plane", int, 0),
        _address(request.get("address"), "address"),
    )


def _address(value: Any, key: str) -> Address:
    match value:
        case [str(host), int(port)] if 0 <= port <= 65_535:
            return host, port
    raise RequestError(f"{key} = {value!r}: must be [host, port] with a port in 0..65535")
