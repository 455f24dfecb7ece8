"""Every argument of every public callable of training is refused in one line if it is of no use."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import farstep
from farstep import train
from farstep.train import checkpoint
from farstep.train.checkpoint.erasure import Scheme
from farstep.train.errors import ConfigError
from farstep.train.healing import ImageLimits
from farstep.train.shard import Shard

LONG = "x" * 10_000
ODD = [object(), {1, 2}, b"x", "a\nb", LONG, "\x1b[31m", lambda: 0, math.nan, [], {}, {"a": 1}, (), 2.5, 1j]
TEXTS = ["", "x", "a\nb", LONG, "\x1b[31m", "5"]

NO_COUNT = [value for value in ODD if value is not None] + [-1, 1.5, "1", True, 10**400]
NO_NUMBER = [value for value in ODD if not isinstance(value, float) or math.isnan(value)] + ["1", True, -1]
NO_PATH = [value for value in ODD if not isinstance(value, str)] + [5, None, True]
NO_FLAG = [*ODD, 0, 1, "yes"]
NO_TEXT = [value for value in ODD if not isinstance(value, str)] + [5, True]
NO_OBJECT = [*ODD, 5, True, *TEXTS]
NO_NAME = [*NO_TEXT, "", "a b", "a\n", LONG, "\x1b"]

KINDS: dict[str, list[Any]] = {
    "count": [*NO_COUNT, None],
    "count or None": NO_COUNT,
    "number": [*NO_NUMBER, None],
    "number or None": NO_NUMBER,
    "whole": [*(value for value in NO_COUNT if value != -1), None],
    "folder": [*NO_PATH, "", __file__, f"{__file__}/below", "a\0b", LONG],
    "folder or None": [value for value in NO_PATH if value is not None] + [__file__, LONG],
    "path": NO_PATH,
    "path or None": [value for value in NO_PATH if value is not None],
    "flag": [*NO_FLAG, None],
    "flag or None": NO_FLAG,
    "name or None": NO_NAME,
    "text": [*NO_TEXT, None],
    "text or None": NO_TEXT,
    "scheme": [*NO_TEXT, None, *TEXTS, "5-of-3", "copies:1", f"{LONG}-of-5", "9" * 5000 + "-of-9"],
    "word": [*NO_TEXT, None, *TEXTS],
    "list": [value for value in [*NO_TEXT, None, 5] if not isinstance(value, list | tuple | set)],
    "table or None": [value for value in NO_OBJECT if not isinstance(value, dict)],
    "table": [value for value in [*NO_OBJECT, None] if not isinstance(value, dict)],
    "function": [value for value in [*NO_OBJECT, None] if not callable(value)],
    "function or None": [value for value in NO_OBJECT if not callable(value)],
    "object": [*NO_OBJECT, None],
    "object or None": NO_OBJECT,
    "addresses": [5, 2.5, object(), [5], [], {"a": 1}, b"x", [None]],
    "ports": [5, object(), [5], [], "127.0.0.1:0", {"a": 1}, [None]],
    "data": [5, object(), "x", None],
}

CHECKPOINT = {"every_steps": "count or None", "keep_last": "count", "keep_every": "count or None"}
LIMITS = ("manifest_bytes_max", "state_bytes_max", "tensors_max", "dimensions_max")
PACES = ("slowdown", "takeover_s", "doze_s", "rate_start_mbps", "rate_min_mbps", "ping_interval_s")
PATIENCE = ("silence_s", "linger_s", "reconnect_s", "hedge_s")
COUNTS = ("log_bytes_max", "chunk_bytes", "chunks_in_flight", "gradients_in_flight", "niceness")

ARGUMENTS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "Checkpoint": (farstep.Checkpoint, {"folder": "folder", **CHECKPOINT, "files": "object or None"}),
    "PeerMemory": (
        farstep.PeerMemory,
        {"scheme": "scheme", "keep": "count", "every_steps": "count"},
    ),
    "Retention": (
        checkpoint.Retention,
        {"keep_last": "count", "keep_every": "count or None"},
    ),
    "CheckpointFolder": (checkpoint.CheckpointFolder, {"path": "path", "files": "object or None"}),
    "Scheme": (Scheme, {"needed": "count", "shards": "count"}),
    "HealingSettings": (
        farstep.HealingSettings,
        {
            "rate_mbps": "number or None",
            "follow_slowdown": "number or None",
            **dict.fromkeys((*PACES, *PATIENCE), "number"),
            **dict.fromkeys(COUNTS, "count"),
            "limits": "object",
        },
    ),
    "ImageLimits": (ImageLimits, dict.fromkeys(LIMITS, "count")),
    "Synchronous": (
        farstep.Synchronous,
        {
            "batch": "word",
            "lr_scaling": "word",
            "bucket_bytes": "count",
            "skip_not_finite": "flag",
            "refused_steps_max": "count",
            "step_deadline_s": "number",
            "stall_s": "number",
        },
    ),
    "join": (
        farstep.join,
        {
            "coordinator": "addresses",
            "name": "name or None",
            "site": "text or None",
            "spare": "flag or None",
            "tls": "folder or None",
            "run": "name or None",
            "ports": "ports",
            "profile": "object or None",
            "healing": "object or None",
        },
    ),
    "Trainer": (
        farstep.Trainer,
        {
            "run": "object",
            "model": "object",
            "optimizer": "object",
            "policy": "object or None",
            "scheduler": "object or None",
            "state": "table or None",
            "clip_norm": "number or None",
            "seed": "whole",
            "checkpoint": "object or None",
            "memory": "object or None",
        },
    ),
    "Shard": (
        Shard,
        {
            "source": "data",
            "batch_size": "count",
            "batch": "word",
            "seed": "whole",
            "shuffle": "flag or None",
            "drop_last": "flag or None",
            "collate_fn": "function or None",
            "num_workers": "count or None",
            "epochs": "count or None",
            "steps": "count or None",
            "inner": "word",
            "place": "function",
            "on_error": "function or None",
        },
    ),
    "launch": (
        train.launch,
        {"config": "object", "listeners": "list", "on_folder": "function", "resume": "path or None"},
    ),
    "load_config": (train.load_config, {"path": "path or None", "overrides": "table or None"}),
    "parse_config": (
        train.parse_config,
        {"table": "table", "source": "text", "overrides": "table or None"},
    ),
    "dump_toml": (train.dump_toml, {"config": "object"}),
    "demo_config": (train.demo_config, {"steps": "count or None"}),
}

NOT_CALLED_BY_USERS = {"Run", "StepReport", "SaveHandle", "CheckpointInfo", "Broken", "Restored", "Domain"}
"""What is given to users, not made by them."""

OTHERWISE = {
    "Tolerance",
    "RunResult",
    *(name for name in train.__all__ if name.endswith(("Config", "Section"))),
}
"""Results, and sections of a configuration: `parse_config` words what is wrong with those."""


def public() -> Iterator[str]:
    for module in (farstep, train, checkpoint):
        for name in module.__all__:
            found = getattr(module, name)
            is_error = inspect.isclass(found) and issubclass(found, BaseException)
            if callable(found) and not is_error and name not in NOT_CALLED_BY_USERS | OTHERWISE:
                yield name


@pytest.mark.parametrize("name", sorted(set(public())))
def test_every_public_callable_is_tried(name: str) -> None:
    function, kinds = ARGUMENTS[name]
    assert set(inspect.signature(function).parameters) == set(kinds)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Arguments that are right, beside the one that is not."""
    model = nn.Linear(4, 2)
    folder = tmp_path_factory.mktemp("valid")
    with farstep.join() as run:
        yield {
            "Checkpoint": {"folder": folder / "c"},
            "CheckpointFolder": {"path": folder / "c"},
            "Scheme": {"needed": 3, "shards": 5},
            "Trainer": {
                "run": run,
                "model": model,
                "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            },
            "Shard": {
                "source": TensorDataset(torch.arange(10.0)),
                "batch_size": 2,
                "place": lambda: None,
            },
            "launch": {"config": train.demo_config(1)},
            "parse_config": {"table": {}, "source": "x"},
            "dump_toml": {"config": train.demo_config(1)},
            "load_config": {"path": None},
        }


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, (_, kinds) in ARGUMENTS.items() for argument in kinds]
)
def test_a_wrong_argument_is_named_in_one_line(
    name: str,
    argument: str,
    valid: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    function, kinds = ARGUMENTS[name]
    for value in KINDS[kinds[argument]]:
        with pytest.raises(ConfigError) as caught:
            function(**{**valid.get(name, {}), argument: value})
        text = str(caught.value)
        assert argument in text, (value, text)
        assert text.isprintable(), (value, text)
        assert len(text) < 400, text
    assert list(tmp_path.iterdir()) == [], "nothing is done before the arguments are looked at"


def spoiling_values() -> Iterator[str]:
    """Where a message of training shows a value as Python does, and not as all messages do."""
    for path in sorted(Path(train.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            if isinstance(node.exc.func, ast.Name) and node.exc.func.id in ("AttributeError", "TimeoutError"):
                continue  # names of ours
            for part in ast.walk(node.exc):
                if isinstance(part, ast.FormattedValue) and part.conversion == ord("r"):
                    yield f"{path.name}:{part.lineno}"


def test_messages_quote_values_in_one_way() -> None:
    """`quoted` keeps a message on one line and short, whatever the value."""
    assert list(spoiling_values()) == []
