"""Registered memory: what may be sent from without a copy, and what peers may write to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farstep.engine.errors import RegionError

if TYPE_CHECKING:
    from farstep.engine.endpoint import Endpoint

__all__ = ["Region", "RemoteRegion"]


class RemoteRegion(NamedTuple):
    """Names a peer's region. Offsets into it start at 0; it carries no address of the peer's memory.

    Of the 64 bits of the key 48 are chosen at random. The lower half goes into RETH as the remote key, the upper half
    is that of the region's first address.
    """

    rkey: int
    length_bytes: int


class Region:
    """Memory known to an endpoint, registered by :meth:`farstep.engine.Endpoint.register`.

    The buffer is used in place and kept alive. `close` ends the peers' access at once; memory that is still being
    sent from stays referenced until those sends end.

    Attributes:
        buffer: what was registered; None once closed.
        length_bytes: its size.
        remote: the name by which a peer writes to it.
    """

    def __init__(self, endpoint: Endpoint, buffer: Any, keeper: Any, rkey: int, length_bytes: int) -> None:
        self.buffer = buffer
        self._keeper = keeper
        self.length_bytes = length_bytes
        self.remote = RemoteRegion(rkey, length_bytes)
        self._endpoint: Endpoint | None = endpoint

    @property
    def is_closed(self) -> bool:
        """Whether the region has been closed."""
        return self._endpoint is None

    def close(self) -> None:
        """Ends access to the memory. Safe to call twice."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint._release_region(self.remote.rkey, self._keeper)
        self.buffer = self._keeper = None

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_endpoint", None) is not None:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"rkey {self.remote.rkey:#018x}"
        return f"<Region {self.length_bytes} bytes, {state}>"


def locate(buffer: Any) -> tuple[Any, int, int, bool]:
    """Finds the memory of a buffer: what keeps it alive, address, length in bytes, whether it is writable.

    Raises:
        RegionError: the object has no contiguous memory on this host.
    """
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "element_size"):
        return _locate_tensor(buffer)
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise RegionError("an array that is not C-contiguous cannot be registered; copy it first")
        if buffer.dtype.hasobject:
            raise RegionError(
                f"an array of {buffer.dtype} holds references, which peers must not write; valid is plain data"
            )
        return buffer, buffer.ctypes.data, buffer.nbytes, buffer.flags.writeable
    try:
        view = memoryview(buffer)
        array = np.frombuffer(view, dtype=np.uint8) if view.nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        kinds = "a NumPy array, a torch CPU tensor or an object with the buffer protocol"
        raise RegionError(
            f"{type(buffer).__name__} cannot be registered ({error}); valid is {kinds}"
        ) from None
    return array, array.ctypes.data, array.nbytes, not view.readonly


def _locate_tensor(tensor: Any) -> tuple[Any, int, int, bool]:  # without importing torch
    if tensor.device.type != "cpu":
        raise RegionError(f"a tensor on {tensor.device} cannot be registered; valid is a tensor on the CPU")
    if str(tensor.layout) != "torch.strided":
        raise RegionError(f"a tensor of layout {tensor.layout} cannot be registered; valid is a dense tensor")
    if not tensor.is_contiguous():
        raise RegionError("a tensor that is not contiguous cannot be registered; call .contiguous() first")
    # The storage is kept too: assigning to `tensor.data` would let go of it.
    keeper = (tensor, tensor.untyped_storage())
    return keeper, tensor.data_ptr(), tensor.numel() * tensor.element_size(), True
