"""Training steps: which traffic a plan makes, and what waits for what."""

import numpy as np
import pytest

from farstep.sim.tasks import WorkloadError
from farstep.sim.workloads.training import TrainingPlan, one_f_one_b, training_steps
from tests.unit.sim.test_jobs import finish_times


def bytes_of(table, phase: str) -> int:
    chosen = table.phase == table.phase_names.index(phase)
    return int(table.size_bytes[chosen].sum())


def test_a_stage_runs_one_forward_one_backward():
    assert one_f_one_b(0, 3, 4) == [
        ("F", 0), ("F", 1), ("F", 2), ("B", 0), ("F", 3), ("B", 1), ("B", 2), ("B", 3),
    ]  # fmt: skip
    assert one_f_one_b(2, 3, 2) == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]


def test_the_bytes_of_a_step_are_those_of_the_plan():
    plan = TrainingPlan(
        tensor=2, pipeline=2, data=4, expert=2, layers=4, micro_batches=3, steps=2,
        tensor_bytes=1000, pipeline_bytes=500, gradient_bytes=8000, buckets=2, expert_bytes=30,
    )  # fmt: skip
    table = training_steps(16, plan).validate(16)
    passes = 2 * 2 * 3  # steps, directions, micro-batches
    assert (
        bytes_of(table, "tensor all-reduce") == passes * 2 * 8 * 2 * 1000
    )  # layers of a stage, groups, twice the vector
    assert bytes_of(table, "pipeline") == passes * 8 * 500
    assert bytes_of(table, "gradient all-reduce") == 2 * 16 * 2 * 3 * 8000 // 4
    assert bytes_of(table, "expert all-to-all") == passes * 2 * 16 * 2 * 30
    assert table.num_steps == 2


def test_dimensions_are_neighbours_in_the_order_tensor_data_pipeline():
    plan = TrainingPlan(
        tensor=2, pipeline=2, data=2, layers=2, tensor_bytes=10, pipeline_bytes=10, gradient_bytes=10
    )
    table = training_steps(8, plan)
    distances = {
        name: set(np.abs(table.source - table.target)[table.phase == number].tolist())
        for number, name in enumerate(table.phase_names)
    }
    assert distances["tensor all-reduce"] == {1}
    assert distances["gradient all-reduce"] == {2}
    assert distances["pipeline"] == {4}


def test_without_traffic_a_step_takes_what_its_pipeline_takes():
    plan = TrainingPlan(pipeline=4, layers=8, micro_batches=6, forward_us=1.0, optimizer_us=5.0, steps=2)
    table = training_steps(4, plan).validate(4)
    assert table.num_flows == 0
    # (micro-batches + stages - 1) x (forward + backward) of two layers, and the optimizer
    step_ns = (6 + 4 - 1) * 2 * 3_000 + 5_000
    assert finish_times(table, flow_ns=0).max() == 2 * step_ns
    assert finish_times(training_steps(1, TrainingPlan(layers=2, optimizer_us=1)), 0).max() == 601_000


def test_gradients_are_reduced_while_the_backward_pass_goes_on():
    plan = TrainingPlan(data=2, layers=4, forward_us=100.0, gradient_bytes=4000, buckets=4)
    table = training_steps(2, plan).validate(2)
    finish = finish_times(table, flow_ns=50_000)
    gradient = table.phase == table.phase_names.index("gradient all-reduce")
    first = finish[gradient & table.is_flow].min()
    assert first == 400_000 + 200_000 + 50_000  # forward, a layer backward, a flow
    assert finish.max() == 400_000 + 800_000 + 2 * 50_000  # of four buckets the last alone is exposed


def test_checkpoints_are_background():
    plan = TrainingPlan(data=2, tensor=2, steps=4, checkpoint_bytes=77, checkpoint_every=2)
    table = training_steps(4, plan, storage=[4, 5]).validate(6)
    written = table.phase == table.phase_names.index("checkpoint")
    assert table.source[written].tolist() == [0, 1, 0, 1]
    assert table.target[written].tolist() == [4, 5, 4, 5]
    assert set(table.tag[written].tolist()) == {-1}
    offset, _ = table.successors()
    assert (np.diff(offset)[written] == 0).all()  # nothing waits for them


def test_jitter_is_drawn_from_the_seed():
    def times(seed: int) -> list[int]:
        table = training_steps(8, TrainingPlan(data=8, jitter_percent=10, seed=seed))
        return table.delay_ns[table.phase == 0].tolist()

    assert times(1) == times(1) != times(2)
    assert all(90_000 <= time <= 110_000 for time in times(1))
    assert len(set(times(1))) > 1


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"layers": 3, "pipeline": 2}, "layers is 3; pipeline = 2 must divide it"),
        ({"data": 4, "expert": 3}, "expert is 3; it must divide data = 4"),
        ({"buckets": 2}, "buckets is 2; a stage has 1 layers to cut into them"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
    ],
)
def test_an_impossible_plan_is_refused(plan, message):
    with pytest.raises(WorkloadError, match=message):
        TrainingPlan(**plan)


def test_a_plan_needs_its_ranks_and_its_storage():
    with pytest.raises(WorkloadError, match="8 ranks are given; tensor 1 x data 4 x pipeline 1 needs 4"):
        training_steps(8, TrainingPlan(data=4))
    with pytest.raises(WorkloadError, match="storage must name the NICs"):
        training_steps(1, TrainingPlan(checkpoint_bytes=5))
