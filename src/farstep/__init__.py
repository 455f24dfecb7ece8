"""Lockstep training across many machines and sites over a network that is allowed to fail.

Importing this package is cheap: nothing below it is loaded until it is asked for.

```python
import farstep

run = farstep.join()
trainer = farstep.Trainer(run, model, optimizer)
for batch in run.shard(loader):
    loss = trainer.step(lambda: loss_fn(model, batch))
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.train.checkpoint import Checkpoint, PeerMemory
    from farstep.train.elastic.options import Synchronous
    from farstep.train.elastic.seams import RunOver
    from farstep.train.elastic.trainer import StepReport, Trainer
    from farstep.train.healing import HealingSettings
    from farstep.train.run import Run, join

__version__ = "0.1.0"

_MODULES = {
    "Checkpoint": "farstep.train.checkpoint",
    "HealingSettings": "farstep.train.healing",
    "PeerMemory": "farstep.train.checkpoint",
    "Run": "farstep.train.run",
    "RunOver": "farstep.train.elastic.seams",
    "StepReport": "farstep.train.elastic.trainer",
    "Synchronous": "farstep.train.elastic.options",
    "Trainer": "farstep.train.elastic.trainer",
    "join": "farstep.train.run",
}

__all__ = [
    "Checkpoint",
    "HealingSettings",
    "PeerMemory",
    "Run",
    "RunOver",
    "StepReport",
    "Synchronous",
    "Trainer",
    "__version__",
    "join",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
