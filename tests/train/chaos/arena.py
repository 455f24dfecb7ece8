"""Hurts a job: processes, network, clocks and disks, by a schedule, and takes it back."""

from __future__ import annotations

import signal
import time
import urllib.error
from typing import Any

from tests.train.chaos.schedule import SITES, Event
from tests.train.chaos.stage import Injected, Stage

__all__ = ["Arena"]

LEFT_MIN = 3
"""Healthy members that every event leaves: a majority of the voters."""


class Arena(Stage):
    """A job, and everything that can be done to it."""

    def play(self, events: list[Event], *, settle_every: int = 10) -> None:
        """Lets all events happen, and waits now and then until everybody is back."""
        for event in events:
            self._rest(event.gap_s)
            what = f"event {event.number} {event.kind} being bearable"
            self._until(lambda event=event: self._is_bearable(event), what)  # type: ignore[misc]
            self._inject(event)
            if (event.number + 1) % settle_every == 0:
                self.settle(f"event {event.number}")
        self.settle("the last event")

    # -- choosing -------------------------------------------------------------------------------------

    def _is_bearable(self, event: Event) -> bool:
        """Whether the run can be expected to survive the event."""
        kind = event.kind
        if kind.startswith("coordinator") or kind in ("clock_coordinator", "disk_coordinator"):
            return "coordinator" in self.tape.pids and not self._is_coordinator_impaired
        if kind in ("pause", "slow", "clock_member", "line_cut", "disk_member"):
            return event.target in self._healthy() or (kind == "disk_member" and bool(self._healthy()))
        if kind == "join":
            return len(self._healthy()) >= LEFT_MIN
        hit = self._hit(event)
        if kind.startswith("path"):
            return len(self._healthy()) >= LEFT_MIN and len(self._path_faults) < 2
        if kind == "drain" and (self._is_coordinator_impaired or "coordinator" not in self.tape.pids):
            return False
        return hit <= self._healthy() and len(self._healthy() - hit) >= LEFT_MIN

    def _hit(self, event: Event) -> set[str]:
        if event.kind == "site_loss":
            return {name for name, site in SITES.items() if site == event.target and name in self.tape.pids}
        return {event.target} if event.target in self._site_of else set()

    # -- hurting --------------------------------------------------------------------------------------

    def _inject(self, event: Event) -> None:
        names = self._hit(event)
        if event.kind == "disk_member" and self.tape.writer in self.tape.pids:
            names = {self.tape.writer}
        if event.kind.startswith("path"):
            near, far = event.target.split("->")
            names = {name for name, site in SITES.items() if site in (near, far)}
        note = Injected(
            event=event,
            names=tuple(sorted(names)),
            members=tuple(self.tape.member_ids.get(name, "") for name in sorted(names)),
            at_s=time.monotonic(),
            log_at=len(self.event_log()),
            step=self.newest_step,
        )
        self.injected.append(note)
        getattr(self, f"_do_{event.kind.removesuffix('_up').removesuffix('_down')}")(event, note)

    def _do_kill(self, event: Event, note: Injected) -> None:
        for name in note.names:
            self._impair(name)
            self.expected_ends[self.tape.pids[name]] = {-signal.SIGKILL}
            self._signal(name, signal.SIGKILL)
            self._is_down.add(name)
        for name in note.names:
            self._in(event.lasts_s, lambda name=name: self._return(name))

    _do_site_loss = _do_kill

    def _do_hang(self, event: Event, note: Injected) -> None:
        (name,) = note.names
        self._impair(name)
        self._hanging.add(name)
        self._signal(name, signal.SIGSTOP)

        def go_on() -> None:
            self._hanging.discard(name)
            self._signal(name, signal.SIGCONT)
            self._heal(name)

        self._in(event.lasts_s, go_on)

    _do_pause = _do_hang

    def _do_slow(self, event: Event, note: Injected) -> None:
        (name,) = note.names
        self._slow[name] = time.monotonic() + event.lasts_s
        self._in(event.lasts_s + 0.2, lambda: self._slow.pop(name, None))

    def _do_drain(self, event: Event, note: Injected) -> None:
        (name,) = note.names
        self._impair(name)
        self.expected_ends[self.tape.pids[name]] = {0}
        try:
            self._post(f"/v1/members/{name}/drain", {"reason": "chaos"})
        except (OSError, urllib.error.HTTPError) as error:
            note.said = f"refused: {error}"
            self._heal(name)
            return
        self._in(event.lasts_s, lambda: self._return(name))

    def _do_notice(self, event: Event, note: Injected) -> None:
        (name,) = note.names
        self._impair(name)
        self.expected_ends[self.tape.pids[name]] = {0}
        self._signal(name, signal.SIGTERM)
        self._in(event.lasts_s, lambda: self._return(name))

    def _do_join(self, event: Event, note: Injected) -> None:
        name = event.target
        self._site_of[name] = "abc"[event.number % 3]
        self.start_member(name)
        self._in(event.lasts_s, lambda: self._let_go(name))

    def _do_coordinator_kill(self, event: Event, note: Injected) -> None:
        self._end_coordinator()
        port = self.coordinator_port
        self._in(event.lasts_s, lambda: self.start_coordinator(port))

    def _do_coordinator_move(self, event: Event, note: Injected) -> None:
        self._end_coordinator()

        def elsewhere() -> None:
            self.start_coordinator()
            for name in self._site_of:
                if name in self.tape.pids:
                    self._move_line(name)

        self._in(event.lasts_s, elsewhere)

    def _do_coordinator_hang(self, event: Event, note: Injected) -> None:
        self._is_coordinator_impaired = True
        self._signal("coordinator", signal.SIGSTOP)

        def go_on() -> None:
            self._signal("coordinator", signal.SIGCONT)
            self._is_coordinator_impaired = False

        self._in(event.lasts_s, go_on)

    def _do_coordinator_partition(self, event: Event, note: Injected) -> None:
        self._is_coordinator_impaired = True
        names = [name for name in self._site_of if name in self.tape.pids]
        for name in names:
            self.relays.block(name, "up", "down")

        def join_again() -> None:
            self._is_coordinator_impaired = False
            for name in names:
                self.relays.unblock(name)

        self._in(event.lasts_s, join_again)

    def _do_line_cut(self, event: Event, note: Injected) -> None:
        self.relays.cut(note.names[0])

    def _do_line_block(self, event: Event, note: Injected) -> None:
        (name,) = note.names
        self._impair(name)
        match event.kind:
            case "line_block_up":
                self.relays.block(name, "up")
            case "line_block_down":
                self.relays.block(name, "down")
            case _:
                self.relays.block(name, "up", "down")
        self._in(event.lasts_s, lambda: self.relays.unblock(name))
        self._in(event.lasts_s, lambda: self._heal(name))

    def _do_path_block(self, event: Event, note: Injected) -> None:
        near, far = event.target.split("->")
        fault: dict[str, Any] = {"kind": "partition", "sites": [near, far], "name": f"chaos{event.number}"}
        if event.kind == "path_block_one_way":
            fault["direction"] = event.target
        self._path_fault(fault, event)

    _do_path_block_one_way = _do_path_block

    def _do_path_loss(self, event: Event, note: Injected) -> None:
        near, far = event.target.split("->")
        fault = {"kind": "loss", "loss_percent": 10.0, "sites": [near, far], "name": f"chaos{event.number}"}
        self._path_fault(fault, event)

    def _path_fault(self, fault: dict[str, Any], event: Event) -> None:
        self.emulator.apply(fault)
        self._path_faults.append(fault["name"])

        def end() -> None:
            self._path_faults.remove(fault["name"])
            self.emulator.restore(fault["name"])

        self._in(event.lasts_s, end)

    def _do_clock_member(self, event: Event, note: Injected) -> None:
        self._signal(note.names[0], signal.SIGUSR1)

    def _do_clock_coordinator(self, event: Event, note: Injected) -> None:
        self._signal("coordinator", signal.SIGUSR1)

    def _do_disk_member(self, event: Event, note: Injected) -> None:
        pid = self.tape.pids[note.names[0]]
        self._order(op="space", pid=pid, is_there=False)
        self._in(event.lasts_s, lambda: self._order(op="space", pid=pid, is_there=True))

    def _do_disk_coordinator(self, event: Event, note: Injected) -> None:
        pid = self.tape.pids["coordinator"]
        self._order(op="space", pid=pid, is_there=False)
        self._in(event.lasts_s, lambda: self._order(op="space", pid=pid, is_there=True))

    # -- taking back ----------------------------------------------------------------------------------

    def _impair(self, name: str) -> None:
        self._impaired[name] = self._impaired.get(name, 0) + 1

    def _heal(self, name: str) -> None:
        """What was done to a member is taken back; it counts as healthy again from its next commit on."""
        self._impaired[name] = max(0, self._impaired.get(name, 0) - 1)
        self.tape.last_commit.pop(name, None)

    def _return(self, name: str) -> None:
        """Starts a member again once its process has ended."""
        if name in self.tape.pids:
            self._in(0.1, lambda: self._return(name))
            return
        for line in self.tape.ports.pop(name, []):
            self.emulator.withdraw(line["site"], line["plane"], tuple(line["address"]))
        self.tape.last_commit.pop(name, None)
        self.start_member(name)
        self._heal(name)

    def _let_go(self, name: str) -> None:
        """Gives a member that came in addition a notice, once it has trained."""
        if name not in self.tape.last_commit:
            self._in(0.1, lambda: self._let_go(name))
            return
        self.expected_ends[self.tape.pids[name]] = {0}
        self._signal(name, signal.SIGTERM)

    def _end_coordinator(self) -> None:
        self._is_coordinator_impaired = True
        self.expected_ends[self.tape.pids["coordinator"]] = {-signal.SIGKILL}
        self._signal("coordinator", signal.SIGKILL)
        self._until(lambda: "coordinator" not in self.tape.pids, "the coordinator being dead", 20.0)
