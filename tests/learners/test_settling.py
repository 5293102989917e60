"""Keeping tensors and going back to them, by kernels of our own against PyTorch's.

On a GPU, or in Triton's interpreter, see ``interpreter.py``.
"""

from __future__ import annotations

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON, device_of_kernels
from ocar.guard.device import DeviceGuard
from ocar.guard.kept import Kept
from torch import Tensor, nn
from torch.testing import assert_close
from toys import mlp, vectors

import ocar
from ocar.accel.layout import lies_by_pixel
from ocar.accel.snapshot import TableKept, Tables
from ocar.guard import Guard, settling

pytestmark = [*NEEDS_TRITON, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
OCAR = {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2, "memory": 30, "passes": 2}
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_of_kernels(monkeypatch, settling)


def tensors(device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Weights, one that lies pixel by pixel and one in several pieces, and other tensors."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weights = [conv.weight, conv.bias, torch.randn(1200, 8)]
    assert lies_by_pixel(conv.weight)
    others = [torch.randn(5), torch.randn(2, 2)]
    return [t.detach().to(device) for t in weights], [t.to(device) for t in others]


def moved(weights: list[Tensor], others: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Copies from before and after a step."""
    before = [t.clone() for t in (*weights, *others)]
    for t in (*weights, *others):
        t.add_(torch.randn_like(t))
    return before, [t.clone() for t in (*weights, *others)]


def kept(tables: Tables, weights: list[Tensor], others: list[Tensor]) -> TableKept:
    found = tables.keep(weights, others)
    assert isinstance(found, TableKept)
    return found


@pytest.mark.parametrize("share", [None, 1.0, 0.75, 0.25])
@pytest.mark.parametrize("accepted", [True, False])
def test_as_without_kernels(device: torch.device, share: float | None, accepted: bool) -> None:
    results = []
    for ours in (True, False):
        weights, others = tensors(device)
        keep = kept(Tables(device), weights, others) if ours else Kept(weights, others)
        before, after = moved(weights, others)
        if not accepted:
            weights[0].fill_(NAN)
        part = None if share is None else torch.tensor(share, device=device)
        keep.settle_(torch.tensor(accepted, device=device), part)
        results.append([*weights, *others])
        if not accepted:
            assert_close(results[-1], before, rtol=0, atol=0)
        elif share in (None, 1.0):
            assert_close(results[-1], after, rtol=0, atol=0)
    assert_close(*results)


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_copies_of_one_sample(device: torch.device, dtype: torch.dtype, accepted: bool) -> None:
    counts = torch.arange(5, device=device)
    verdict = torch.tensor(accepted, device=device)
    x = torch.arange(3 * 2000, device=device).view(3, 1, 2000).to(dtype)
    copies = x[:1].repeat(3, 1, 1)
    almost = copies.clone()
    almost[2, 0, 1999] += 1
    for batch, worth in ((x, True), (copies, False), (almost, True), (copies[:1], True)):
        before = counts.clone()
        found = settling.remembers(batch, verdict, counts)
        assert found is not None
        assert bool(found) == (accepted and worth)
        before[3] += int(accepted and not worth)
        assert torch.equal(counts, before)


def test_batches_that_one_program_does_not_look_through(device: torch.device) -> None:
    verdict, counts = torch.tensor(True, device=device), torch.zeros(5, device=device).long()
    for x in (torch.zeros(2, 2**16), torch.zeros(4, 6).mT, torch.zeros(3, 4).bool()):
        assert settling.remembers(x.to(device), verdict, counts) is None


def test_every_tensor_is_in_the_sum(device: torch.device) -> None:
    weights, others = tensors(device)
    keep = kept(Tables(device), weights, others)
    for place in (*weights, *others):
        expected = sum(float(t.double().sum()) for t in (*weights, *others))
        assert_close(float(keep.sum().sum()), expected, rtol=1e-4, atol=1e-3)
        index = tuple(size - 1 for size in place.shape)
        value = place[index].clone()
        for bad in (NAN, INF):
            place[index] = bad
            assert not keep.sum().isfinite().all()
        place[index] = value


def test_what_there_is_no_table_for(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, others = tensors(device)
    tables = Tables(device)
    assert isinstance(tables.keep([*weights, others[0].double()], []), Kept)
    assert isinstance(tables.keep([weights[2][:, ::2]], []), Kept)
    monkeypatch.setattr(settling, "is_capturing", lambda device: True)
    assert isinstance(tables.keep(weights, others), Kept)  # too late to make one
    monkeypatch.undo()
    if INTERPRETED:
        monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(settling, "kernels", lambda name: None)
    assert isinstance(tables.keep(weights, others), Kept)


@pytest.mark.parametrize(
    ("loss", "trusted", "divergences", "bad"),
    [
        (1.0, True, [0.5, 1.0], 0.0),
        (1.0, True, [3.0, 5.0], 0.0),
        (NAN, True, [0.5, 1.0], 0.0),
        (1.0, True, [NAN, 1.0], 0.0),
        (1.0, True, [INF, 1.0], 0.0),
        (1.0, True, [0.5, 1.0], NAN),
        (1.0, False, [3.0, 5.0], 0.0),
        (NAN, False, [3.0, 5.0], INF),
        (1.0, True, None, 0.0),
        (INF, True, None, 0.0),
    ],
)
def test_decides_as_without_kernels(
    device: torch.device,
    loss: float,
    trusted: bool,
    divergences: list[float] | None,
    bad: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = None if divergences is None else torch.tensor(divergences, device=device)
    results = []
    for ours in (True, False):
        learner = ocar.ER(nn.Sequential(nn.Linear(6, 4)).to(device), lr=0.1)
        guard = DeviceGuard(Guard(kl=2.0), learner._context, bounded=True)
        monkeypatch.setattr(guard._change, "divergences", lambda: found)
        weights, others = tensors(device)
        if not ours:
            monkeypatch.setattr(settling, "kernels", lambda name: None)
        for _ in range(2):
            guard.begin(weights, others)
            assert isinstance(guard._kept, TableKept) == ours
            torch.manual_seed(1)
            before, after = moved(weights, others)
            if bad:
                others[1][0, 1] = bad
            given = torch.tensor(loss, device=device), torch.tensor(trusted, device=device)
            guard.settle(*given)
            if not guard.accepted:
                assert_close([*weights, *others], before, rtol=0, atol=0)
            elif divergences in ([0.5, 1.0], None):
                assert_close([*weights, *others], after, rtol=0, atol=0)
        results.append((guard.counts(), bool(guard.accepted), [*weights, *others]))
    assert results[0][:2] == results[1][:2]
    assert_close(results[0][2], results[1][2])


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU all learners do")
def test_a_learner(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong, so nothing is changed, to the bit."""
    monkeypatch.setattr("ocar.guard.HostGuard", DeviceGuard)
    states = []
    for guard in (Guard(), None):
        learner = ocar.OCAR(mlp(), guard=guard, **OCAR)
        for x, y in vectors(4, [0, 1, 2, 3]):
            learner.learn(x, y)
        states.append([p.detach() for p in learner.model.parameters()])
        if guard is not None:
            assert learner.guarded.largest_kl > 0
            assert any(learner._guard._tables._tables.values())
    assert_close(*states, rtol=0, atol=0)
