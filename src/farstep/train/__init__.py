"""Training that survives: run, trainer, policies, launcher.

Nothing here loads torch on import; the processes that compute do.

```python
from farstep.train import launch, load_config

result = launch(load_config(Path("run.toml")))
print(result.status, result.held_out_loss, result.is_identical)
```
"""

from farstep.train.config import (
    DataConfig,
    ModelConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    RunSection,
    SiteConfig,
    TransportConfig,
    demo_config,
)
from farstep.train.config_file import dump_toml, load_config, parse_config
from farstep.train.errors import ConfigError, RunFailed, TrainError
from farstep.train.launcher import launch
from farstep.train.result import RunResult

__all__ = [
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "RunConfig",
    "RunFailed",
    "RunResult",
    "RunSection",
    "SiteConfig",
    "TrainError",
    "TransportConfig",
    "demo_config",
    "dump_toml",
    "launch",
    "load_config",
    "parse_config",
]
