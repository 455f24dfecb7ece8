"""A reliable connection to one peer: one-sided writes over many paths."""

from __future__ import annotations

import hashlib
import math
import operator
import threading
import time
from typing import TYPE_CHECKING

from farstep import _native
from farstep.engine.completion import Completion
from farstep.engine.descriptor import ConnectionDescriptor, split_signature
from farstep.engine.errors import (
    ConnectionAborted,
    ConnectionFailed,
    EndpointClosed,
    EngineError,
    RegionError,
    SecurityError,
    WaitTimeout,
)
from farstep.engine.key_agreement import EphemeralKey, check_expected, sign, verify
from farstep.engine.opening import agreement_of, parameters_for
from farstep.engine.security import Protection
from farstep.engine.stats import ConnectionStats
from farstep.mrc.errors import InvalidFieldError, check_range

if TYPE_CHECKING:
    from farstep.engine.completion import CompletionDispatcher
    from farstep.engine.endpoint import Endpoint
    from farstep.engine.region import Region, RemoteRegion

__all__ = ["Connection"]

_SLICE_NS = 100_000_000  # a wait looks for Ctrl-C this often
_READY, _TIMED_OUT, _FAILED, _CLOSED = range(4)
_ABORTED_CAUSES = {"aborted": "given up here", "remote_aborted": "the peer gave it up"}
_FAILED_CAUSES = {
    "retry_exceeded": "no path to the peer answers any more; the retry budget is spent",
    "remote_refused": "the peer refused a packet: its region is closed or too small, or its queue is full",
    "remote_closed": "the peer closed it",
    "protocol_violation": "the peer broke the protocol",
    "no_usable_port": "no port is left that both ends can use",
}


class Connection:
    """One end of a connection, made by :meth:`farstep.engine.Endpoint.create_connection`.

    Writes complete in the order they were posted; their bytes land in any order. Immediates are raised at the peer
    in the order they were posted, each after all bytes of its own and of every earlier write are in memory.

    Attributes:
        descriptor: bytes for the peer's `connect`; carry them over any channel.
        peer_name: name for messages and errors.
        peer_site: site of the peer's endpoint, empty before `connect`.
        peer_identity: name in the peer's certificate, empty before `connect` and without certificates.
        protection: what happens to the packets, known after `connect`.
        mtu_bytes: payload of a full packet, 0 before `connect`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        peer_name: str,
        index: int,
        descriptor: ConnectionDescriptor,
        key: EphemeralKey | None = None,
        expected_identity: str | None = None,
    ) -> None:
        self.peer_name = peer_name
        self.peer_site = ""
        self.peer_identity = ""
        self.protection = Protection.OFF
        self.mtu_bytes = 0
        self._body = self.descriptor = descriptor.encode()
        self._key = key
        self._expected_identity = expected_identity
        if identity := endpoint.profile.security.identity:
            self.descriptor += b"\n" + sign(identity, self._body)
        self._own = descriptor
        self._endpoint = endpoint
        self._native = endpoint._native
        self._dispatcher: CompletionDispatcher = endpoint._dispatcher
        self._index = index
        self._is_connected = False
        self._is_closed = False
        self._abort_reason: str | None = None
        self._life = threading.RLock()  # connect, abort and close may meet, in a signal handler too
        self._last_error = "none"
        self._completed_at_close = 0

    def expect_certificate(self, name: str) -> None:
        """From now on only a peer whose certificate has just this name can be connected to; see `peer_identity`.

        Raises:
            SecurityError: another name was expected before.
        """
        check_expected(name, self._expected_identity)
        self._expected_identity = name

    # ---- life ------------------------------------------------------------------------------------------------------

    def connect(self, peer_descriptor: bytes, *, channel_secret: bytes = b"") -> None:
        """Opens the connection toward the peer whose descriptor this is; both ends do so, in any order.

        Args:
            peer_descriptor: bytes of the peer's `descriptor`.
            channel_secret: bytes that both ends have told each other over an encrypted channel. The keys then follow
                from them too; see :func:`farstep.engine.control_channel.exchange`.

        Raises:
            SecurityError: the peer is not who it should be, or the ends cannot agree on how packets are protected.
            EngineError: the bytes are no descriptor, no address of the peer can be used, or it is connected already.
            ConnectionAborted: it was given up before.
            EndpointClosed: the endpoint is closed.
        """
        body, signature = split_signature(peer_descriptor)
        peer = ConnectionDescriptor.decode(body)
        if peer.icrc != self._own.icrc:
            raise self._error(
                EngineError, "one end has icrc on, the other off; set the same in both profiles"
            )
        with self._life:
            self._endpoint._check_open()
            if self._is_connected or self._is_closed:
                raise self._error(
                    EngineError, "it is closed" if self._is_closed else "it is connected already"
                )
            if self._abort_reason is not None:
                raise self._error(ConnectionAborted, self._abort_reason)
            try:
                parameters = self._secured(peer, body, signature, channel_secret)
            except SecurityError as error:
                raise self._error(SecurityError, error.cause) from None
            self._native.open_connection(self._index, parameters)
            self.mtu_bytes = parameters.mtu_bytes
            self._is_connected = True
            self.peer_site = peer.site
            self._endpoint._sites[self._index] = peer.site
            self._end_if_given_up()  # by a signal handler in between

    def _secured(
        self, peer: ConnectionDescriptor, body: bytes, signature: bytes, channel_secret: bytes
    ) -> _native.ConnectionParameters:
        """Returns the parameters with the secrets, once it is sure who the peer is."""
        agreement = agreement_of(self._own, peer)
        parameters = parameters_for(self._endpoint, self._own, peer, agreement)
        identity, key = self._endpoint.profile.security.identity, self._key
        if identity is None or key is None:
            return parameters
        name = verify(identity, body, signature, peer.security.certificate)
        check_expected(name, self._expected_identity)
        self.peer_identity = name
        # Two peers of different names share nothing, whatever number one of them claims.
        parameters.peer_id = int.from_bytes(hashlib.sha256(f"{peer.peer_id} {name}".encode()).digest()[:8])
        if agreement.protection is not Protection.OFF:
            secrets = key.secrets(
                self._body, body, peer.security.public_key, agreement, channel_secret=channel_secret
            )
            parameters.protection, parameters.key_bytes = str(agreement.protection), agreement.key_bits // 8
            parameters.tx_secret, parameters.rx_secret = secrets.sending, secrets.receiving
        self.protection, self._key = agreement.protection, None
        return parameters

    def abort(self, reason: str) -> None:
        """Gives the connection up: every write and every waiter fails at once, and the peer is told why it ended."""
        if not self._endpoint._owns_process():
            return  # in a forked child the lock may be held by a thread that does not exist
        with self._life:
            if self._abort_reason is None:
                self._abort_reason = reason
            self._end_if_given_up()

    def _end_if_given_up(self) -> None:
        is_running = self._is_connected and not self._is_closed and self._endpoint._is_usable()
        if self._abort_reason is not None and is_running:
            self._native.abort_connection(self._index)

    def close(self) -> None:
        """Ends the connection and frees its state. Writes that have not completed fail. Safe to call twice."""
        if not self._endpoint._owns_process():
            return
        with self._life:
            if self._is_closed:
                return
            self._is_closed = True
            if not self._native.is_closed:
                self._last_error = self._native.connection_error(self._index)
                self._completed_at_close = self._native.close_connection(self._index)
            self._endpoint._forget(self)

    # ---- data ------------------------------------------------------------------------------------------------------

    def write(
        self,
        region: Region,
        offset_bytes: int,
        length_bytes: int,
        remote: RemoteRegion,
        remote_offset_bytes: int,
        *,
        immediate: int | None = None,
    ) -> Completion:
        """Writes `length_bytes` from a region of ours into a region of the peer, without copying.

        The bytes must stay unchanged until the completion. Many writes may be in flight; 0 bytes are fine.

        Args:
            region: registered with the same endpoint.
            offset_bytes: where to read in `region`.
            length_bytes: how much.
            remote: the peer's region.
            remote_offset_bytes: where to write in it.
            immediate: 32-bit number raised at the peer when everything up to here has arrived.

        Raises:
            RegionError: a range lies outside its region, or the region is closed or another endpoint's.
            ConnectionFailed: the connection has failed.
            ConnectionAborted: the connection was given up.
            EndpointClosed: the endpoint is closed.
        """
        _check_range("region", offset_bytes, length_bytes, region.length_bytes)
        _check_range("remote region", remote_offset_bytes, length_bytes, remote.length_bytes)
        check_range("remote.rkey", remote.rkey, 0, (1 << 64) - 1)
        if immediate is not None:
            immediate = operator.index(immediate)
            check_range("immediate", immediate, 0, (1 << 32) - 1)
        self._check_connected()
        if region._endpoint is not self._endpoint:
            raise self._error(
                RegionError,
                "the region to write from is closed"
                if region.is_closed
                else "the region to write from belongs to another endpoint; register the memory with this one",
            )
        number = self._native.write(
            self._index,
            region.remote.rkey,
            offset_bytes,
            length_bytes,
            remote.rkey,
            remote_offset_bytes,
            -1 if immediate is None else immediate,
        )
        if number == _native.REJECTED:
            if region.is_closed:
                raise self._error(RegionError, "the region to write from is closed")
            raise self._failure()
        return Completion(self, number)

    def wait_immediate(self, timeout_s: float | None = None) -> int:
        """Returns the next immediate the peer wrote. Ctrl-C interrupts the wait.

        Raises:
            WaitTimeout: none came within `timeout_s`.
            ConnectionFailed: the connection has failed.
            ConnectionAborted: the connection was given up.
            EndpointClosed: the endpoint is closed.
        """
        end_s = _end_s(timeout_s)
        while True:
            result, value = self._native.wait_immediate(self._check_connected(), _slice_ns(end_s))
            if result == _READY:
                return value
            self._after_wait(result, end_s, timeout_s, "an immediate")

    def poll_immediate(self) -> int | None:
        """Returns the next immediate if one is there, else None."""
        result, value = self._native.wait_immediate(self._check_connected(), 0)
        if result == _READY:
            return value
        if result != _TIMED_OUT:
            raise self._failure()
        return None

    # ---- facts -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it is connected and has not failed."""
        return (
            self._is_connected
            and not self._is_closed
            and self._endpoint._is_usable()
            and self._native.connection_error(self._index) == "none"
        )

    def stats(self, *, with_paths: bool = False) -> ConnectionStats:
        """Returns counters of this connection; with `with_paths` those of every entropy value too."""
        return ConnectionStats.from_native(self._native.connection_stats(self._check_index(), with_paths))

    def deny_path(self, ev_index: int, *, is_denied: bool = True) -> None:
        """Takes an entropy value out of use, or gives it back, whatever its probes say (state DENIED).

        Args:
            ev_index: position among `stats(with_paths=True).paths`.
            is_denied: whether to take it out.

        Raises:
            InvalidFieldError: there is no such entropy value.
            EngineError: it is not connected.
        """
        index = self._check_connected()
        count = self._native.connection_path_count(index)
        if not 0 <= ev_index < count:
            raise InvalidFieldError("ev_index", ev_index, f"0 to {count - 1}")
        self._native.set_ev_denied(index, ev_index, is_denied)

    def __repr__(self) -> str:
        return f"<Connection {self._own.qpn:#08x}>"

    # ---- for Completion --------------------------------------------------------------------------------------------

    def _wait_completion(self, number: int, timeout_s: float | None) -> None:
        end_s = _end_s(timeout_s)
        while True:
            result = self._native.wait_completion(self._check_index(), number, _slice_ns(end_s))
            if result == _READY:
                return
            self._after_wait(result, end_s, timeout_s, "the end of a write")

    def _completion_state(self, number: int) -> tuple[bool, Exception | None]:
        if not self._endpoint._owns_process():
            return True, self._failure()
        if self._is_closed:
            return True, None if number < self._completed_at_close else self._failure()
        result = self._native.wait_completion(self._index, number, 0)
        if result == _TIMED_OUT:
            return False, None
        return True, None if result == _READY else self._failure()

    # ---- errors ----------------------------------------------------------------------------------------------------

    def _check_index(self) -> int:
        if self._is_closed or not self._endpoint._owns_process():
            raise self._failure()
        return self._index

    def _check_connected(self) -> int:
        index = self._check_index()
        if not self._is_connected:
            if self._abort_reason is not None:
                raise self._error(ConnectionAborted, self._abort_reason)
            raise self._error(EngineError, "it is not connected yet; call connect with the peer's descriptor")
        return index

    def _after_wait(self, result: int, end_s: float | None, timeout_s: float | None, what: str) -> None:
        if result != _TIMED_OUT:
            raise self._failure()
        if end_s is not None and time.monotonic() >= end_s:
            raise self._error(WaitTimeout, f"{what} did not come within {timeout_s:g} s")

    def _failure(self) -> EngineError:
        if not self._endpoint._owns_process():
            return self._error(
                EndpointClosed, "the endpoint belongs to the parent process; make one after fork"
            )
        if self._native.is_closed:
            return self._error(EndpointClosed, "the endpoint is closed")
        cause = self._last_error if self._is_closed else self._native.connection_error(self._index)
        if cause in _ABORTED_CAUSES:
            own_reason = self._abort_reason if cause == "aborted" else None
            return self._error(ConnectionAborted, own_reason or _ABORTED_CAUSES[cause])
        if self._is_closed and cause == "none":
            return self._error(ConnectionAborted, "it was closed here")
        return self._error(ConnectionFailed, _FAILED_CAUSES.get(cause, cause))

    def _error(self, kind: type[EngineError], cause: str) -> EngineError:
        return kind(cause, peer=self.peer_name, connection=repr(self))


def _end_s(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if math.isnan(timeout_s):
        raise InvalidFieldError("timeout_s", timeout_s, "a number of seconds, or None to wait without limit")
    return time.monotonic() + timeout_s


def _slice_ns(end_s: float | None) -> int:
    if end_s is None:
        return _SLICE_NS
    return int(max(0.0, min(_SLICE_NS, (end_s - time.monotonic()) * 1e9)))


def _check_range(name: str, offset: int, length: int, size: int) -> None:
    if offset < 0 or length < 0 or offset + length > size:
        raise RegionError(f"bytes {offset} to {offset + length} are outside the {name} of {size} bytes")
