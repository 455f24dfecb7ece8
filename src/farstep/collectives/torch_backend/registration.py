"""Tells torch of the backend; everything else loads when a process group is made.

Torch calls this while it is being imported itself, possibly by an import of this package, so that this module
must be complete before it imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BACKEND_NAME = "mrc"


def register_torch_backend() -> None:
    """Makes ``torch.distributed`` know the backend "mrc". Safe to call more than once."""
    import torch.distributed as dist

    if dist.is_available() and BACKEND_NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(backend_options: Any, options: Any) -> ProcessGroup:
    """Called by torch for every process group of this backend."""
    from farstep.collectives.torch_backend.process_group import create_process_group

    return create_process_group(backend_options, options)
