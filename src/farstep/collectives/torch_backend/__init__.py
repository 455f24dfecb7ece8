"""The torch.distributed backend "mrc": ``torch.distributed.init_process_group("mrc")``.

torch loads this by itself through the entry point ``torch.backends``; importing it, or calling
:func:`register_torch_backend`, does the same.
"""

from farstep.collectives.torch_backend.process_endpoint import MrcOptions, close_endpoint, use_endpoint
from farstep.collectives.torch_backend.process_group import MrcProcessGroup, register_torch_backend
from farstep.collectives.torch_backend.store import TorchStore
from farstep.collectives.torch_backend.tensors import tensor_vector

__all__ = [
    "MrcOptions",
    "MrcProcessGroup",
    "TorchStore",
    "close_endpoint",
    "register_torch_backend",
    "tensor_vector",
    "use_endpoint",
]

register_torch_backend()
