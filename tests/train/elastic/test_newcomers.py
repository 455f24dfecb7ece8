"""Members that take a seat while others train: whatever happens while their lane is opened, nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.collectives import Communicator
from farstep.train.elastic.trainer import Trainer
from farstep.train.healing import Healing
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, digest_of, small_model

DATA = TensorDataset(
    torch.randn(64, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2)),
)
SURVIVORS = ("a-0", "b-0")


class Scene:
    """Two groups that train until they are told to end; others come, and what they publish can be tampered with."""

    def __init__(self, **config: Any) -> None:
        self.groups = Groups(healing=Healing, groups=2, min_groups=1, **{"max_groups": 4, **config})
        self.hub = self.groups.hub
        self.is_over = threading.Event()
        self.steps: dict[str, list[tuple[int, int]]] = {}
        self.digests: dict[str, dict[int, str]] = {}
        self.on_publish: dict[str, Callable[[str], bool]] = {}
        """By member: is asked for every key before it is published; False keeps it back."""
        for name in SURVIVORS:
            self.groups.start(name, self.work)
        self.train_on(5)

    def work(self, run: Run) -> int:
        name = run.name
        membership = self.groups.memberships[name]
        publish: Callable[[str, str, bytes], None] = membership.publish

        def tampered(scope: str, key: str, value: bytes) -> None:
            look = self.on_publish.get(name)
            if look is None or look(key):
                publish(scope, key, value)

        membership.publish = tampered
        model = small_model(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = Trainer(run, model, optimizer)
        for batch in run.shard(DATA, batch_size=12, epochs=1_000_000):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            report = trainer.report
            assert report is not None
            self.digests.setdefault(name, {})[trainer.committed] = digest_of(model)
            self.steps.setdefault(name, []).append((report.num_groups, report.attempts))
            if self.is_over.wait(0.005):
                run.end()
        return trainer.committed

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(3000):
            if is_true():
                return
            pause.wait(0.01)
        pytest.fail(f"nothing happened: {list(self.hub.events)[-6:]}")

    def train_on(self, steps: int, names: tuple[str, ...] = SURVIVORS) -> None:
        done = {name: len(self.steps.get(name, [])) for name in names}
        self.wait_for(lambda: all(len(self.steps.get(n, [])) >= done[n] + steps for n in names))

    def generations(self) -> list[list[str]]:
        return [fields["members"] for kind, fields in self.hub.events if kind == "generation"]

    def end(self, *names: str) -> None:
        """Ends the run; it must have been the same for all of them, bit for bit."""
        self.is_over.set()
        self.groups.join(*names)
        self.groups.close()
        assert not {name: error for name, error in self.groups.errors.items() if name in names}
        first = self.digests[names[0]]
        for name in names[1:]:
            common = first.keys() & self.digests[name].keys()
            assert common
            assert all(first[step] == self.digests[name][step] for step in common)
        assert len({self.groups.results[name] for name in names}) == 1

    def lane_threads(self) -> set[str]:
        """Generation, lane and seat of every lane that has a thread."""
        run_id = self.groups.memberships["a-0"].current().run_id
        prefix = f"farstep-{run_id}/"
        return {t.name.removeprefix(prefix) for t in threading.enumerate() if t.name.startswith(prefix)}


@pytest.fixture(autouse=True)
def meshes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What all lanes made their links with."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Communicator:
        communicator = Communicator(*arguments, **options)
        made.append(communicator._session.mesh)
        return communicator

    monkeypatch.setattr("farstep.train.elastic.lane.Communicator", make)
    monkeypatch.setattr(
        "farstep.train.elastic.trainer.END_LINGER_S", 0.1
    )  # whom they served has a seat, or is dead
    return made


def links_of(scene: Scene, meshes: list[Any], name: str) -> int:
    """Links of a member's lanes."""
    endpoint = scene.groups.endpoints[name]
    return sum(len(mesh._links) for mesh in meshes if mesh.endpoint is endpoint)


def test_steps_go_on_while_a_lane_is_opened() -> None:
    scene = Scene()
    may_open = threading.Event()
    scene.on_publish["c-0"] = lambda key: "/lane0/link/" not in key or may_open.wait(60)
    scene.groups.start("c-0", scene.work)
    scene.wait_for(lambda: ["a-0", "b-0", "c-0"] in scene.generations())
    scene.train_on(10)
    assert all(number == 2 for name in SURVIVORS for number, _ in scene.steps[name]), (
        "nobody goes over to a lane that is not open"
    )
    may_open.set()
    scene.train_on(3, ("c-0",))
    scene.end(*SURVIVORS, "c-0")
    assert all(attempts == 1 for name in SURVIVORS for _, attempts in scene.steps[name])
    assert not [fields for kind, fields in scene.hub.events if kind in ("step_failed", "failure_report")]


@pytest.mark.parametrize(
    "point", ["/lane0/link/2/0", "/lane0/link/2/1", "/lane0/open/2/0", "/lane0/open/2/1"]
)
def test_a_newcomer_that_dies_while_its_lane_is_opened_leaves_nothing(point: str, meshes: list[Any]) -> None:
    scene = Scene()
    has_died = threading.Event()

    def die(key: str) -> bool:
        if has_died.is_set():
            return False
        if point in key:
            has_died.set()
            scene.hub.kill(scene.groups.memberships["c-0"])
            scene.groups.endpoints["c-0"].abort("killed")
        return not has_died.is_set()

    scene.on_publish["c-0"] = die
    scene.groups.start("c-0", scene.work)
    scene.wait_for(has_died.is_set)
    scene.wait_for(lambda: scene.generations()[-1] == ["a-0", "b-0"] and len(scene.generations()) == 3)
    scene.train_on(10)
    assert "c-0" not in scene.steps
    for name in SURVIVORS:
        assert links_of(scene, meshes, name) == 1, "each has its link to the other, and no other"
        assert all(number == 2 for number, _ in scene.steps[name])
        assert sum(attempts - 1 for _, attempts in scene.steps[name]) <= 1
    # Seat 2's own thread would have died with its process.
    scene.wait_for(lambda: not {"g2/lane0-0", "g2/lane0-1"} & scene.lane_threads())
    scene.end(*SURVIVORS)


def test_two_newcomers_at_once() -> None:
    scene = Scene()
    meet = threading.Barrier(2)
    first = threading.Event()

    def wait(key: str) -> bool:
        if "/lane0/link/" in key and not first.is_set():
            meet.wait(60)
            first.set()
        return True

    # The first cannot open its lane before the second has a seat, too.
    scene.on_publish["c-0"] = wait
    scene.on_publish["d-0"] = wait
    scene.groups.start("c-0", scene.work)
    scene.groups.start("d-0", scene.work)
    scene.train_on(3, ("c-0", "d-0"))
    scene.end(*SURVIVORS, "c-0", "d-0")
    assert all(attempts == 1 for name in SURVIVORS for _, attempts in scene.steps[name])
    assert scene.steps["a-0"][-1][0] == 4


@pytest.mark.parametrize("point", ["/lane0/link/2/0", "/lane0/open/2/1"])
def test_the_coordinator_may_die_while_a_lane_is_opened(point: str) -> None:
    scene = Scene()
    is_gone = threading.Event()

    def look(key: str) -> bool:
        if point in key and not is_gone.is_set():
            scene.hub.kill_coordinator()
            is_gone.set()
        return True

    scene.on_publish["c-0"] = look
    scene.groups.start("c-0", scene.work)
    scene.wait_for(is_gone.is_set)
    scene.train_on(10)
    assert all(number == 2 for name in SURVIVORS for number, _ in scene.steps[name])
    scene.hub.start_coordinator()
    scene.train_on(3, ("c-0",))
    scene.end(*SURVIVORS, "c-0")
    assert all(attempts == 1 for name in SURVIVORS for _, attempts in scene.steps[name])


def test_a_spare_that_waits_has_no_lane(meshes: list[Any]) -> None:
    scene = Scene(spares=1)
    scene.groups.start("s-0", scene.work, wants="spare")
    scene.wait_for(lambda: any(kind == "heal_done" for kind, _ in scene.hub.events))
    scene.wait_for(lambda: len(scene.generations()) == 2)
    scene.train_on(5)
    scene.wait_for(lambda: all(links_of(scene, meshes, name) == 1 for name in SURVIVORS))
    scene.is_over.set()
    scene.groups.join()
    scene.groups.close()
    assert not scene.groups.errors
