import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.train.healing import ImageRejected, Manifest, StateImage
from farstep.train.healing.image import ImageLimits, ImagePlan, allocate

STATE = {"weight": torch.arange(3000.0), "half": torch.ones(5, dtype=torch.bfloat16), "step": torch.tensor(3)}


def parsed_with(change: Callable[[dict[str, Any]], Any]) -> Manifest:
    content = json.loads(StateImage.of(STATE, 4, chunk_bytes=4096).manifest.to_json())
    change(content)
    return Manifest.parse(json.dumps(content).encode())


def test_a_manifest_survives_its_text() -> None:
    manifest = StateImage.of(STATE, 4, chunk_bytes=4096).manifest
    assert parsed_with(lambda content: None) == manifest
    assert manifest.num_chunks == 3
    assert manifest.chunk(2) == (8192, manifest.length_bytes)


def test_every_changed_byte_is_noticed() -> None:
    image = StateImage.of(STATE, 4, chunk_bytes=4096)
    for position in (0, 4095, 4096, 9000, image.buffer.nbytes - 1):
        image.buffer[position] ^= 1
        damaged = [index for index in range(3) if not image.has_chunk(index)]
        assert damaged == [position // 4096]
        with pytest.raises(ImageRejected, match="of step 4 hashes to"):
            image.verify()
        image.buffer[position] ^= 1
    image.verify()


def test_a_copy_may_go_into_memory_that_was_used_before() -> None:
    used = allocate(StateImage.of(STATE).buffer.nbytes)
    used[:] = 0xFF
    plan = ImagePlan(STATE, 0)
    plan.copy_into(used)
    assert plan.seal(used).manifest == StateImage.of(STATE).manifest


def test_a_state_without_tensors_has_an_empty_image() -> None:
    image = StateImage.of({"step": 3})
    arrived = StateImage.allocate(Manifest.parse(image.manifest.to_json()))
    arrived.verify()
    assert arrived.state() == {"step": 3}


def _set(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content.update(fields)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set(format=2), "format"),
        (_set(step=-1), "step"),
        (_set(step=True), "step"),
        (_set(step=1.5), "step"),
        (_set(length_bytes=1 << 60), "length_bytes"),
        (_set(length_bytes=12_000), "chunk hashes|ends at byte"),
        (_set(chunk_bytes=0), "chunk_bytes"),
        (_set(chunk_bytes=16), "chunk_bytes"),
        (_set(chunk_hashes=[]), "chunk hashes"),
        (_set(chunk_hashes="0123"), "chunk hashes"),
        (_set(chunk_hashes=[1, 2, 3]), "chunk hash"),
        (_set(chunk_hashes=["z" * 32] * 3), "chunk hash"),
        (_set(total_hash=None), "total_hash"),
        (_set(tensors=None), "list its tensors"),
        (_set(tensors=[["float32", [3000], 0]]), "end at byte 12000"),
        (lambda c: c["tensors"].__setitem__(0, 3), "not \\[type"),
        (lambda c: c["tensors"][0].__setitem__(0, "object"), 'of type "object"'),
        (lambda c: c["tensors"][0].__setitem__(0, []), "of type"),
        (lambda c: c["tensors"][0].__setitem__(1, [1 << 40, 1 << 40]), "larger than"),
        (lambda c: c["tensors"][0].__setitem__(1, [-3]), "dimension"),
        (lambda c: c["tensors"][0].__setitem__(1, ["a"]), "dimension"),
        (lambda c: c["tensors"][0].__setitem__(1, [1] * 1000), "dimensions"),
        (lambda c: c["tensors"][1].__setitem__(2, 0), "not after"),
        (lambda c: c["tensors"][1].__setitem__(2, 12_001), "not after"),
        (lambda c: c["tensors"][2].__setitem__(2, 1 << 61), "ends at byte"),
    ],
)
def test_a_malformed_manifest_is_rejected(change: Callable[[dict[str, Any]], Any], complaint: str) -> None:
    with pytest.raises(ImageRejected, match=complaint):
        parsed_with(change)


def test_an_absurd_empty_tensor_is_rejected() -> None:
    manifest = StateImage.of({"a": torch.empty(0, 2)}).manifest
    content = json.loads(manifest.to_json())
    content["tensors"][0][1] = [1 << 61, 1 << 61, 0]
    with pytest.raises(ImageRejected, match="impossible"):
        StateImage.allocate(Manifest.parse(json.dumps(content).encode())).state()


def test_limits_hold_before_anything_is_allocated() -> None:
    manifest = StateImage.of(STATE).manifest
    text = manifest.to_json()
    for limits, complaint in [
        (ImageLimits(manifest_bytes_max=100), "at most 100"),
        (ImageLimits(state_bytes_max=100), "from 0 to 100"),
        (ImageLimits(tensors_max=2), "at most 2"),
    ]:
        with pytest.raises(ImageRejected, match=complaint):
            Manifest.parse(text, limits)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_to_a_manifest_gives_a_manifest_or_a_rejection(data: st.DataObject) -> None:
    text = bytearray(StateImage.of(STATE, 4, chunk_bytes=4096).manifest.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ImageRejected):
        StateImage.allocate(Manifest.parse(bytes(text))).state()
