"""Training that survives: run, trainer, policies, launcher.

Nothing here loads torch on import; the parts that compute are loaded by the processes that do.
"""

from farstep.train.config import RunConfig, demo_config
from farstep.train.config_file import dump_toml, load_config, parse_config
from farstep.train.errors import ConfigError, RunFailed, TrainError

__all__ = [
    "ConfigError",
    "RunConfig",
    "RunFailed",
    "TrainError",
    "demo_config",
    "dump_toml",
    "load_config",
    "parse_config",
]
