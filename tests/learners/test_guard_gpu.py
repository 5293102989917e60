"""The guard of a learner on a CUDA device, in single precision, by kernels of our own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from ocar import accel
from ocar.accel.snapshot import TableSnapshot
from ocar.guard import BatchGuard, Guard
from ocar.learner import Learner
from ocar.methods.registry import make_settings
from ocar.models.resnet import SlimResNet18

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning"),
]


def make(*, record: bool, guard: Guard | None = None, tau: float = 10.0) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = SlimResNet18(classes=16).to("cuda", torch.float32)
    own, transform = make_settings(
        "ocar", memory=40, replay_batch=10, lr=1e-3, tau=tau, tau_step=1e-6, ema=0.2
    )
    return Learner(model, own, transform=transform, record=record, guard=guard or Guard())


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, 256, (10, 3, 32, 32), generator=generator, dtype=torch.uint8).cuda(),
            torch.randint(0, 5, (10,), generator=generator),
        )
        for _ in range(count)
    ]


def test_few_kernels_measure_what_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Tensor, Tensor]] = []
    commit = BatchGuard.commit

    def measure_and_commit(guard: BatchGuard, *given: Tensor | None) -> None:
        assert isinstance(guard._snapshot, TableSnapshot)
        if isinstance(guard._divergences, partial):
            ways = accel.divergence.implementations
            question = guard._divergences.args
            found.append((ways["triton"](*question), ways["plain"](*question)))
            assert torch.equal(accel.divergence(*question), found[-1][0]), "that is what is used"
        commit(guard, *given)

    monkeypatch.setattr(BatchGuard, "commit", measure_and_commit)
    learner = make(record=False, tau=0.1)
    for x, y in batches(5):
        learner.learn(x, y)
    assert len(found) >= 3
    for ours, theirs in found:
        assert theirs.mean() > 1e-3
        torch.testing.assert_close(ours.mean(), theirs.mean(), rtol=1e-2, atol=1e-5)


def test_recorded_is_eager() -> None:
    recorded, eager = make(record=True), make(record=False)
    for x, y in batches(6):
        recorded.learn(x, y)
        eager.learn(x, y)
        kl = recorded.guarded.largest_kl
        assert kl == pytest.approx(eager.guarded.largest_kl, rel=5e-2, abs=1e-5)
    assert recorded._steps.graph._recorded
    assert recorded.guarded.total == eager.guarded.total == 0


def test_the_same_twice_to_the_bit() -> None:
    learner = make(record=False)
    stream = batches(3)
    for x, y in stream:
        learner.learn(x, y)
    measure = accel.divergence.implementations["triton"]
    x = torch.randn(20, 3, 32, 32, device="cuda")
    active = torch.ones(16, dtype=torch.bool, device="cuda")
    before = torch.randn(10, 16, device="cuda").log_softmax(-1)
    first = measure(learner.model, x, active, before)
    for _ in range(20):
        assert torch.equal(first, measure(learner.model, x, active, before))


@pytest.mark.parametrize("record", [True, False])
def test_what_is_not_finite_is_taken_back(record: bool) -> None:
    learner = make(record=record)
    stream = batches(6)
    for x, y in stream[:5]:
        learner.learn(x, y)
    before = {name: t.clone() for name, t in learner.model.state_dict().items()}
    head = list(learner.model.parameters())[-1]
    handle = head.register_hook(lambda gradient: gradient * float("nan"))
    learner._steps.graph.forget()  # the hook is to be in the graph
    for _ in range(3):
        learner.learn(*stream[5])
    handle.remove()
    assert learner.guarded.not_finite == learner.guarded.in_a_row == 3
    for name, t in learner.model.state_dict().items():
        assert torch.equal(t, before[name]), name


@pytest.mark.parametrize("record", [True, False])
def test_a_step_too_long_is_shortened(record: bool) -> None:
    bound = 1e-4
    learner = make(record=record, guard=Guard(kl=bound), tau=0.1)
    for x, y in batches(5):
        learner.learn(x, y)
    assert learner.guarded.shortened >= 3
    assert learner.guarded.largest_kl > bound
    assert all(p.isfinite().all() for p in learner.model.parameters())
