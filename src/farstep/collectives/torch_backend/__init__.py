"""The torch.distributed backend "mrc": ``torch.distributed.init_process_group("mrc")``.

torch registers it by itself through the entry point ``torch.backends``; importing this package, or calling
:func:`register_torch_backend`, does the same. Other names load when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farstep.collectives.torch_backend.registration import register_torch_backend

if TYPE_CHECKING:
    from farstep.collectives.torch_backend.process_endpoint import MrcOptions, close_endpoint, use_endpoint
    from farstep.collectives.torch_backend.process_group import MrcProcessGroup
    from farstep.collectives.torch_backend.store import TorchStore
    from farstep.collectives.torch_backend.tensors import tensor_vector

_MODULES = {
    "MrcOptions": "process_endpoint",
    "MrcProcessGroup": "process_group",
    "TorchStore": "store",
    "close_endpoint": "process_endpoint",
    "tensor_vector": "tensors",
    "use_endpoint": "process_endpoint",
}

__all__ = [
    "MrcOptions",
    "MrcProcessGroup",
    "TorchStore",
    "close_endpoint",
    "register_torch_backend",
    "tensor_vector",
    "use_endpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


register_torch_backend()
