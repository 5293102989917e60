"""Weights and images, channels first or last."""

from __future__ import annotations

import pytest
import torch
from implementations import on_gpu
from torch import Tensor, nn

from ocar.accel import from_weight_matrix, lay_out_, saved_order, weight_matrix
from ocar.accel.layout import Scratch, flat, in_memory, inner, is_channels_last, laid_out

LAST = torch.channels_last


def kernel(*shape: int, last: bool) -> Tensor:
    t = torch.arange(torch.Size(shape).numel()).view(shape).float()
    return t.contiguous(memory_format=LAST) if last else t


def test_which_tensors_are_channels_last() -> None:
    assert is_channels_last(kernel(2, 3, 4, 5, last=True))
    assert not is_channels_last(kernel(2, 3, 4, 5, last=False))
    assert not is_channels_last(kernel(2, 3, 1, 1, last=True))  # both layouts are one
    assert not is_channels_last(kernel(2, 1, 4, 5, last=True))
    assert not is_channels_last(torch.randn(3, 4))
    assert not is_channels_last(kernel(2, 3, 4, 10, last=True)[..., ::2])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("like", [False, True])
def test_images_take_the_layout_of_others(last: bool, like: bool) -> None:
    t, other = kernel(2, 3, 4, 5, last=last), kernel(2, 3, 4, 5, last=like)
    found = laid_out(t, like=other)
    assert is_channels_last(found) == like
    assert torch.equal(found, t)
    assert (found.data_ptr() == t.data_ptr()) == (last == like)
    assert in_memory(found).is_contiguous()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (4, 3, 1, 1), (4, 1, 2, 2), (4, 3), (4, 3, 2)])
@pytest.mark.parametrize("last", [False, True])
def test_a_weight_survives_the_way_to_a_matrix_and_back(
    shape: tuple[int, ...], groups: int, last: bool
) -> None:
    weight = kernel(*shape, last=last and len(shape) == 4)
    matrix = weight_matrix(weight, groups=groups)
    assert matrix.shape == (groups, 4 // groups, weight[0].numel())
    assert matrix.data_ptr() == weight.data_ptr()  # no copy
    back = from_weight_matrix(matrix, like=weight)
    assert torch.equal(back, weight)
    assert is_channels_last(back) == is_channels_last(weight)


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (2, 8, 3, 3)])
def test_the_saved_order_is_channels_first(shape: tuple[int, ...]) -> None:
    first, last = (kernel(*shape, last=layout) for layout in (False, True))
    assert saved_order(first) is None
    order = saved_order(last)
    assert order is not None
    assert torch.equal(weight_matrix(last)[..., order], weight_matrix(first))
    assert torch.equal(weight_matrix(first)[..., order.argsort()], weight_matrix(last))


def test_on_a_cpu_no_layout_is_changed() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Conv2d(64, 64, 1), nn.Linear(2, 2))
    lay_out_(model)
    assert not any(is_channels_last(parameter) for parameter in model.parameters())


@on_gpu
def test_on_a_gpu_wide_convolutions_are_channels_last() -> None:
    wide = nn.Conv2d(64, 64, 3)
    others = [
        nn.Conv2d(64, 64, 1),
        nn.Conv2d(16, 64, 3),
        nn.Conv2d(64, 32, 3),
        nn.Conv2d(64, 64, 3, groups=2),
        nn.Conv2d(64, 64, 3).double(),
    ]
    model = nn.Sequential(wide, *others).cuda()
    before = [parameter.clone() for parameter in model.parameters()]
    lay_out_(model)
    assert is_channels_last(wide.weight) == (torch.cuda.get_device_capability() >= (8, 0))
    assert not any(is_channels_last(conv.weight) for conv in others)
    assert all(map(torch.equal, model.parameters(), before))


def test_scratch_memory_is_used_again_by_the_same_key() -> None:
    scratch, tensors = Scratch(), [torch.arange(6.0).view(2, 3), torch.ones(2)]
    first = scratch.flat(tensors)
    assert first.tolist() == [0, 1, 2, 3, 4, 5, 1, 1]
    other = scratch.flat(tensors[1:], key="other")
    again = scratch.flat([2 * t for t in tensors])
    assert again.data_ptr() == first.data_ptr() != other.data_ptr()
    assert again.tolist() == [0, 2, 4, 6, 8, 10, 2, 2]
    assert scratch.flat(tensors[:1]).tolist() == [0, 1, 2, 3, 4, 5]
    assert scratch.flat([torch.ones(2, dtype=torch.float64)]).dtype == torch.float64


def test_an_inner_product_is_that_of_the_flat_tensors() -> None:
    kernels = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    tensors = [kernels.to(memory_format=torch.channels_last), torch.randn(4, dtype=torch.float64)]
    others = [torch.randn_like(t) for t in tensors]
    expected = sum((a * b).sum() for a, b in zip(tensors, others, strict=True))
    torch.testing.assert_close(inner(flat(tensors), others), expected)
