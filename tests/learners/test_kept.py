"""What tensors were before some steps: kept, given back, or gone back to in part."""

from __future__ import annotations

import torch
from ocar.guard.kept import Kept
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel.layout import lies_by_pixel

YES, NO = torch.tensor(True), torch.tensor(False)


def tensors() -> tuple[list[Tensor], list[Tensor]]:
    """Weights, some that lie pixel by pixel and some of another type, and other tensors."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    assert lies_by_pixel(conv.weight)
    weights = [conv.weight, conv.bias, torch.randn(2, 3, dtype=torch.float64)]
    return [t.detach() for t in weights], [torch.randn(5), torch.randn(2, 2)]


def moved(weights: list[Tensor], others: list[Tensor]) -> tuple[Kept, list[Tensor], list[Tensor]]:
    """What was kept, and copies of all tensors from before and after a step."""
    kept = Kept(weights, others)
    before = [t.clone() for t in (*weights, *others)]
    for t in (*weights, *others):
        t.add_(torch.randn_like(t))
    return kept, before, [t.clone() for t in (*weights, *others)]


def test_what_is_accepted_stays_to_the_bit():
    for share in (None, torch.tensor(1.0)):
        weights, others = tensors()
        kept, _, after = moved(weights, others)
        kept.settle_(YES, share)
        assert_close([*weights, *others], after, rtol=0, atol=0)


def test_what_is_not_becomes_what_it_was_whatever_it_is_now():
    weights, others = tensors()
    kept, before, _ = moved(weights, others)
    weights[0].fill_(float("nan"))
    others[0].fill_(float("inf"))
    assert not kept.sum().isfinite()
    kept.settle_(NO, torch.tensor(1.0))
    assert_close([*weights, *others], before, rtol=0, atol=0)


def test_only_weights_go_part_of_the_way():
    for share in (0.25, 0.75):
        weights, others = tensors()
        kept, before, after = moved(weights, others)
        kept.settle_(YES, torch.tensor(share))
        part = [torch.lerp(b, a, share) for b, a in zip(before[:3], after[:3], strict=True)]
        assert_close([*weights, *others], [*part, *after[3:]])


def test_every_tensor_is_in_the_sum():
    weights, others = tensors()
    for place in (*weights, *others):
        kept = Kept(weights, others)
        expected = sum(float(t.double().sum()) for t in (*weights, *others))
        assert_close(float(kept.sum()), expected, rtol=1e-4, atol=1e-4)
        index = tuple(size - 1 for size in place.shape)
        value = place[index].clone()
        place[index] = float("nan")
        assert not kept.sum().isfinite()
        place[index] = value
