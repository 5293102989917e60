"""What tests ask of a curvature, and comparisons that several tests make."""

from __future__ import annotations

from nets import observe
from reference import as_matrix, trains_bias
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC, DenseFisher, LayerCurvature
from ocar.curvature.blocks import Blocks


def block_of(curvature: LayerCurvature, layer: str) -> Blocks:
    """The blocks that a layer belongs to."""
    return next(block for block in curvature.blocks if layer in block.layers)


def average(curvature: LayerCurvature, layer: str, key: str) -> Tensor:
    """The moving average of a statistic of a layer."""
    return block_of(curvature, layer).buffer.average(f"{layer}.{key}")


def averages(curvature: LayerCurvature) -> dict[str, Tensor]:
    """All moving averages, ``layer.key``."""
    return {
        name: block.buffer.average(name)
        for block in curvature.blocks
        for name in block.buffer.shapes
    }


def parameters(curvature: LayerCurvature) -> list[nn.Parameter]:
    """The parameters of all layers that have curvature."""
    return [p for layer in curvature.layers.values() for p in layer.parameters]


def assert_factors(curvature: LayerCurvature, expected: dict[str, tuple[Tensor, Tensor]]) -> None:
    """The averages of A and G are those of the reference."""
    for name, (a, g) in expected.items():
        assert_close(average(curvature, name, "A"), a, **EXACT)
        assert_close(average(curvature, name, "G"), g, **EXACT)


def assert_kfac_is_the_dense_fisher(model: nn.Linear, x: Tensor, **options: object) -> None:
    """K-FAC with exact damping and the full Fisher precondition a layer's gradient alike."""
    results = []
    for curvature in (KFAC(model, damping_kind="exact", **options), DenseFisher(model, **options)):
        outputs = observe(curvature, x)
        model.zero_grad()
        (outputs - 1).square().sum().backward()
        curvature.precondition_()
        results.append([p.grad.clone() for p in model.parameters()])
    for kfac, dense in zip(*results, strict=True):
        assert_close(kfac, dense, **EXACT)


def layer_gradient(layer: nn.Module) -> Tensor:
    """The gradient of weight and bias as ``(groups, d_out, d_in)``."""
    return as_matrix(layer, layer.weight.grad, layer.bias.grad if trains_bias(layer) else None)
