"""Waking up on time: a timer descriptor for epoll, and the kernel settings that make it exact.

`select.epoll` waits in whole milliseconds, far too coarse for pacing packets; a timer descriptor has the
kernel's own resolution. Python offers it from 3.13 on, so it is called through libc here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

PR_SET_TIMERSLACK = 29
TFD_NONBLOCK = os.O_NONBLOCK
TFD_CLOEXEC = os.O_CLOEXEC
TFD_TIMER_ABSTIME = 1
CLOCK_MONOTONIC = 1

PRIORITY = -10
"""Half way up the scale of nice values."""

NS_PER_S = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """A descriptor that becomes readable at a given instant of `time.monotonic_ns`.

    Raises:
        OSError: the kernel offers no timer descriptors.
    """

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _Itimerspec()
        self._reference = ctypes.byref(self._spec)
        self._set = _libc.timerfd_settime
        self._armed_ns: int | None = None

    def arm(self, at_ns: int | None) -> None:
        """Sets when to wake; None: not at all. A past instant wakes at once."""
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        # An instant of zero would disarm, so "at once" is one nanosecond after boot.
        wanted_ns = 0 if at_ns is None else max(1, at_ns)
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(wanted_ns, NS_PER_S)
        if self._set(self.fd, TFD_TIMER_ABSTIME, self._reference, None) < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_settime({wanted_ns} ns) failed")

    def acknowledge(self) -> None:
        """Takes note of an expiry, after which `arm` starts afresh.

        The descriptor stays readable until then: watch it for news only, which saves reading it.
        """
        self._armed_ns = None

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self.fd)


def raise_priority() -> None:
    """Asks for precedence over computing processes, as a network does not wait for them; needs a privilege.

    Without it nothing changes: packets leave late when all processors are busy, which the counters tell.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


def reduce_timer_slack() -> None:
    """Lets timers of this thread expire exactly; the kernel's default is to be up to 50 us late."""
    _libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
