"""Running a recorded run again: the same membership at the same steps gives the same bits."""

from farstep.train.replay.launch import Replayed, replay
from farstep.train.replay.plan import ReplayPlan, Span, read_plan

__all__ = ["ReplayPlan", "Replayed", "Span", "read_plan", "replay"]
