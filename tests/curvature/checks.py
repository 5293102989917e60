"""Comparisons that several tests make."""

from __future__ import annotations

from reference import as_matrix, trains_bias
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC


def assert_factors(kfac: KFAC, expected: dict[str, tuple[Tensor, Tensor]]) -> None:
    """The averages of A and G are those of the reference."""
    for name, (a, g) in expected.items():
        assert_close(kfac.blocks[name].averages["A"], a, **EXACT)
        assert_close(kfac.blocks[name].averages["G"], g, **EXACT)


def layer_gradient(layer: nn.Module) -> Tensor:
    """The gradient of weight and bias as ``(groups, d_out, d_in)``."""
    return as_matrix(layer, layer.weight.grad, layer.bias.grad if trains_bias(layer) else None)
