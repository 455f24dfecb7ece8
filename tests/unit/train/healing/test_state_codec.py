import contextlib
import json
import random
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farstep.train.healing import ImageRejected, Manifest, StateImage, StateNotPortable, state_digest
from farstep.train.healing.state_codec import join, split
from tests.unit.train.healing.states import same, states

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def carried(state: Any, chunk_bytes: int = 1024) -> Any:
    """A state as it is after a journey: manifest parsed from text, bytes copied into another buffer."""
    image = StateImage.of(state, 7, chunk_bytes=chunk_bytes)
    arrived = StateImage.allocate(Manifest.parse(image.manifest.to_json()))
    arrived.buffer[:] = image.buffer
    assert all(arrived.has_chunk(index) for index in range(arrived.manifest.num_chunks))
    arrived.verify()
    return arrived.state()


@quick
@given(states)
def test_a_state_arrives_as_it_was(state: Any) -> None:
    assert same(state, carried(state))


@quick
@given(states)
def test_equal_states_have_equal_manifests_and_digests(state: Any) -> None:
    copy = carried(state)
    assert StateImage.of(state, 7).manifest.digest == StateImage.of(copy, 7).manifest.digest
    assert state_digest(state) == state_digest(copy)


@quick
@given(states)
def test_a_skeleton_survives_json_and_leaves_tensors_alone(state: Any) -> None:
    skeleton, tensors = split(state)
    again = json.loads(json.dumps(skeleton, allow_nan=False))
    assert same(state, join(again, tensors))


def test_an_optimizer_and_a_scheduler_go_on_from_what_arrived() -> None:
    def make() -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])

    def train(parts: tuple[Any, ...], steps: range) -> str:
        model, optimizer, scheduler = parts
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(9, 5)).square().mean().backward()
            optimizer.step()
            scheduler.step()
        return state_digest([part.state_dict() for part in parts])

    first, second = make(), make()
    train(first, range(4))
    for part, state in zip(second, carried([part.state_dict() for part in first]), strict=True):
        part.load_state_dict(state)
    assert train(first, range(4, 9)) == train(second, range(4, 9))


def test_random_generators_travel() -> None:
    source = random.Random(3)
    source.gauss(0, 1)
    state = {"python": source.getstate(), "numpy": np.random.default_rng(4).bit_generator.state}
    target = random.Random()
    arrived = carried(state)
    target.setstate(arrived["python"])
    assert target.random() == source.random()
    assert arrived["numpy"] == state["numpy"]


def test_shared_memory_is_sent_once_and_stays_shared() -> None:
    weight = torch.randn(100, 100)
    array = np.arange(50.0)
    arrived = carried({"a": weight, "b": weight.view(100, 100), "t": weight.t(), "n": array, "m": array})
    assert arrived["a"] is arrived["b"]
    assert arrived["a"].data_ptr() != arrived["t"].data_ptr()
    assert arrived["n"] is arrived["m"]
    assert StateImage.of({"a": weight, "b": weight}).buffer.nbytes == weight.numel() * 4


def test_lazy_views_are_resolved() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    arrived = carried({"conj": numbers.conj(), "neg": numbers.conj().imag})
    assert torch.equal(arrived["conj"], torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(arrived["neg"], torch.tensor([-2.0, 4.0]))


def test_module_versions_travel() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    arrived = carried(state)
    assert isinstance(arrived, OrderedDict)
    assert arrived._metadata == state._metadata  # type: ignore[attr-defined]


def test_a_defaultdict_becomes_a_dict() -> None:
    assert carried(defaultdict(int, a=1)) == {"a": 1}


def test_digests_ignore_the_order_of_keys_and_nothing_else() -> None:
    a, b = torch.ones(3), torch.zeros(3)
    digest = state_digest({"a": a, "b": b, "c": 1})
    assert state_digest({"c": 1, "b": b.clone(), "a": a.clone()}) == digest
    others = [
        {"a": b, "b": a, "c": 1},
        {"a": a, "b": b, "c": 1.0},
        {"a": a, "b": b, "c": True},
        {"a": a, "b": b, "c": "1"},
        {"a": a.double(), "b": b, "c": 1},
        {"a": a.view(3, 1), "b": b, "c": 1},
        {"a": a, "b": b, "c": 1, "d": None},
        {"a": -a, "b": b, "c": 1},
        {"a": a, "b": -b, "c": 1},
    ]
    assert digest not in [state_digest(other) for other in others]


class Surprise:
    pass


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"user": {"thing": Surprise()}}, r"state\['user'\]\['thing'\] is a Surprise"),
        ({"user": [1, {2}]}, r"state\['user'\]\[1\] is a set"),
        ({"f": len}, r"state\['f'\] is a builtin_function"),
        ({"s": torch.eye(3).to_sparse()}, r"state\['s'\] is a tensor of layout torch.sparse_coo"),
        ({"o": np.array([None])}, r"state\['o'\] is a numpy array of object"),
        ({torch.ones(1): 2}, "key of type Tensor"),
        (1 << 5000, "integer of 5001 bits"),
    ],
)
def test_what_cannot_travel_is_named(state: Any, where: str) -> None:
    with pytest.raises(StateNotPortable, match=where):
        split(state)


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(StateNotPortable, match="contains itself"):
        split(state)


# -- hostile input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "skeleton",
    [
        [],
        {},
        {"x": 1},
        {"d": 5},
        {"d": [[1]]},
        {"d": [[1, 2], [1, 3]]},
        {"d": [[{"l": []}, 1]]},
        {"l": {"a": 1}},
        {"T": 1},
        {"T": -1},
        {"T": True},
        {"T": "0"},
        {"s": [{"f": "nan"}]},
        {"s": ["a"]},
        {"f": "1.0"},
        {"c": [1.0]},
        {"c": ["a", "b"]},
        {"b": "?"},
        {"b": 3},
        {"y": "object"},
        {"y": []},
        {"C": [["a", "b", "c"]]},
        {"d": [], "m": 1},
        {"o": [], "x": 1},
        1 << 5000,
    ],
)
def test_a_malformed_skeleton_is_rejected(skeleton: Any) -> None:
    with pytest.raises(ImageRejected):
        join(skeleton, [torch.ones(1)])


def test_a_deep_skeleton_is_rejected() -> None:
    skeleton: Any = None
    for _ in range(100):
        skeleton = {"l": [skeleton]}
    with pytest.raises(ImageRejected, match="nested"):
        join(skeleton, [])
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(ImageRejected):
        Manifest.parse(deep)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from("dolCtsTNnfcbym"), inner, max_size=2),
    ),
    max_leaves=10,
)


@quick
@given(json_values)
def test_any_skeleton_gives_a_state_or_a_rejection(skeleton: Any) -> None:
    with contextlib.suppress(ImageRejected):
        join(skeleton, [torch.ones(2), torch.ones(1, dtype=torch.bfloat16)])
