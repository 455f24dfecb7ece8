"""The learning rate of each step: a linear warm-up, then half a cosine down to a floor."""

import math

from farstep.train.config import OptimizerConfig

__all__ = ["learning_rate_at"]


def learning_rate_at(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """Returns the learning rate of a step, counted from 0; a pure function of its arguments."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, num_steps - 1 - config.warmup_steps)
    floor = config.learning_rate * config.final_fraction
    return floor + (config.learning_rate - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
