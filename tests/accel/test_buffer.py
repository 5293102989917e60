"""Statistics of many layers in one flat tensor."""

from __future__ import annotations

import torch

from ocar.accel import FactorBuffer, Pair

SHAPES = {"a.A": (2, 3, 3), "a.G": (2, 1, 1), "b.F": (4,)}


def test_statistics_lie_one_after_another() -> None:
    buffer = FactorBuffer(SHAPES, like=torch.empty(0, dtype=torch.float64))
    assert buffer.averages.shape == buffer.estimates.shape == (18 + 2 + 4,)
    assert buffer.averages.dtype == torch.float64
    assert [buffer.start(name) for name in SHAPES] == [0, 18, 20]
    assert [buffer.index(name) for name in SHAPES] == [0, 1, 2]
    assert buffer.counts.tolist() == [0, 0, 0]
    assert not buffer.averages.any()
    assert not buffer.derived


def test_averages_and_estimates_are_views() -> None:
    buffer = FactorBuffer(SHAPES, like=torch.empty(0))
    buffer.average("a.G").fill_(2.0)
    buffer.estimate("b.F").copy_(torch.arange(4))
    assert buffer.averages[18:20].tolist() == [2.0, 2.0]
    assert buffer.estimates[20:].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert float(buffer.averages.sum()) == 4.0
    assert float(buffer.estimates.sum()) == 6.0
    other = torch.arange(24.0)
    assert torch.equal(buffer.view(other, "a.A"), torch.arange(18.0).view(2, 3, 3))


def test_symmetric_estimates_are_packed_as_triangles() -> None:
    like = torch.empty(0, dtype=torch.float64)
    buffer = FactorBuffer(SHAPES, like=like, symmetric={"a.A", "a.G"})
    values = torch.randn(2, 3, 3, dtype=torch.float64)
    a = buffer.estimate("a.A").copy_(values + values.mT).clone()
    buffer.estimate("a.G").fill_(5.0)
    buffer.estimate("b.F").copy_(torch.arange(4))
    packed = buffer.pack(["b.F", "a.A"])
    triangles = [float(matrix[i, j]) for matrix in a for i in range(3) for j in range(i, 3)]
    assert packed.tolist() == [0.0, 1.0, 2.0, 3.0, *triangles]
    buffer.estimates.zero_()
    buffer.unpack_(2 * packed, ["b.F", "a.A"])
    assert torch.equal(buffer.estimate("a.A"), 2 * a)
    assert buffer.estimate("b.F").tolist() == [0.0, 2.0, 4.0, 6.0]
    assert not buffer.estimate("a.G").any()  # it was not packed


def test_the_factors_of_a_layer_have_names() -> None:
    assert Pair("blocks.0.conv1", 1, 9, 4).names == ("blocks.0.conv1.A", "blocks.0.conv1.G")
