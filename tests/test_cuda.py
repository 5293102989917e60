"""The same numbers on CUDA as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ocar

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch says so once, when the first backward pass of a process begins with a product.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


def small_net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, groups=2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(8 * 25, 6),
        )


def preconditioned(device: str, dtype: torch.dtype, kind: str) -> list[torch.Tensor]:
    model = small_net().to(device, dtype)
    kfac = ocar.KFAC(model, damping=1e-3, ema=0.1, fisher="exact", damping_kind=kind)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(4, 3, 15, 15, generator=generator, dtype=dtype).to(device)
        y = torch.randint(6, (4,), generator=generator).to(device)
        model.zero_grad()
        with kfac.record():
            logits = model(x)
        kfac.update(logits, weights=torch.tensor([1.0, 1.0, 3.0, 3.0], device=device))
        nn.functional.cross_entropy(logits, y).backward()
        kfac.precondition_()
    return [p.grad.cpu() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_preconditioned_gradient_is_the_one_of_the_cpu(kind: str) -> None:
    for cpu, cuda in zip(
        preconditioned("cpu", torch.float64, kind),
        preconditioned("cuda", torch.float64, kind),
        strict=True,
    ):
        torch.testing.assert_close(cuda, cpu, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "fisher", ["sketched(4)", "sketched(4, independent)", "top(3)", "sampled(2)"]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_random_roots_and_autocast_run(fisher: str, autocast: bool) -> None:
    model = small_net().cuda()
    kfac = ocar.KFAC(model, damping=1e-3, ema=0.1, fisher=fisher)
    x, y = torch.randn(4, 3, 15, 15, device="cuda"), torch.randint(6, (4,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        with kfac.record():
            logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
    kfac.update(logits)
    loss.backward()
    kfac.precondition_()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_a_stored_learner_goes_on_from_cuda(tmp_path) -> None:
    def batch(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(i)
        x = torch.randint(0, 256, (10, 3, 15, 15), generator=generator, dtype=torch.uint8)
        return x, torch.randint(0, 4 + i // 4, (10,), generator=generator)

    def make() -> nn.Module:
        return small_net().cuda()

    def settings() -> dict[str, object]:
        return {"lr": 1e-2, "tau_step": 1e-6, "ema": 0.1, "augment": ocar.CropFlip(padding=2)}

    learner = ocar.OCAR(make(), memory=30, **settings())
    for i in range(8):
        learner.learn(*batch(i))
    learner.save(tmp_path / "ckpt")
    restored = ocar.load(tmp_path / "ckpt", make())
    for i in range(8, 12):
        learner.learn(*batch(i))
        restored.learn(*batch(i))
    x = batch(99)[0]
    torch.testing.assert_close(restored.predict(x), learner.predict(x), rtol=1e-3, atol=1e-3)
    assert learner.classes == restored.classes
    assert copy.copy(learner.memory.labels).equal(restored.memory.labels)
