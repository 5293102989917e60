"""Where K-FAC is no approximation: its blocks must be those of the exact Fisher."""

from __future__ import annotations

from itertools import pairwise

import pytest
import reference
import torch
from checks import assert_kfac_is_the_dense_fisher, average
from nets import MeanOverLocations, conv_net, mlp, observe
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC


def kfac_block(kfac: KFAC, name: str) -> Tensor:
    """A ⊗ G as a matrix, for vec of ``(d_out, d_in)`` row by row."""
    factors = zip(average(kfac, name, "A"), average(kfac, name, "G"), strict=True)
    return torch.block_diag(*(torch.kron(g, a) for a, g in factors))


def gaussian(model: nn.Module, **options: object) -> KFAC:
    return KFAC(model, damping=0.1, ema=1.0, fisher="exact", likelihood="gaussian", **options)


def deep_linear(*sizes: int, bias: bool = True) -> nn.Sequential:
    pairs = pairwise(sizes)
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in pairs))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("variance", [1.0, 0.5])
def test_deep_linear_net_with_gaussian_likelihood(bias, variance):
    """The Jacobian does not depend on the sample, so the mean of A ⊗ G is A ⊗ G of the means."""
    model, x = deep_linear(4, 3, 5, 2, bias=bias), torch.randn(6, 4)
    kfac = gaussian(model, variance=variance)
    observe(kfac, x)
    for name in ("0", "1", "2"):
        expected = reference.layer_fisher(model, x, name, variance=variance)
        assert_close(kfac_block(kfac, name), expected, **EXACT)


def test_with_a_categorical_likelihood_the_same_net_is_approximated():
    """The test above can fail: the output's Fisher now depends on the sample."""
    model, x = deep_linear(4, 3, 5, 2), torch.randn(6, 4)
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact")
    observe(kfac, x)
    expected = reference.layer_fisher(model, x, "0")
    difference = torch.linalg.norm(kfac_block(kfac, "0") - expected)
    assert float(difference / torch.linalg.norm(expected)) > 0.01


def test_reduce_is_exact_for_a_linear_net_with_a_mean_over_tokens():
    """Eschenhagen et al. 2023, Proposition 2; expand is not exact there."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), MeanOverLocations(), nn.Linear(2, 2))
    x = torch.randn(5, 3, 3)
    for sharing in ("reduce", "expand"):
        kfac = gaussian(model, sharing=sharing)
        observe(kfac, x)
        for name in ("0", "1", "3"):
            expected = reference.layer_fisher(model, x, name, variance=1.0)
            difference = torch.linalg.norm(kfac_block(kfac, name) - expected)
            error = float(difference / torch.linalg.norm(expected))
            if sharing == "reduce" or name == "3":
                assert error < EXACT["rtol"]
            else:
                assert error > 0.01


def test_reduce_is_exact_for_a_convolution_with_a_mean_over_pixels():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 2),
    )
    x = torch.randn(5, 2, 5, 5)
    kfac = gaussian(model, sharing="reduce")
    observe(kfac, x)
    for name in ("0", "3"):
        expected = reference.layer_fisher(model, x, name, variance=1.0)
        assert_close(kfac_block(kfac, name), expected, **EXACT)


@pytest.mark.parametrize("likelihood", ["categorical", "masked", "gaussian"])
def test_single_datum(likelihood):
    """With one sample and one location the Fisher is aaᵀ ⊗ Σ ggᵀ, whatever the net."""
    model, x = mlp((4, 5, 3, 3)), torch.randn(1, 4)
    active = torch.tensor([True, False, True]) if likelihood == "masked" else None
    variance = 1.0 if likelihood == "gaussian" else None
    name = "gaussian" if likelihood == "gaussian" else "categorical"
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact", likelihood=name)
    observe(kfac, x, active=active)
    for layer in ("0", "2", "4"):
        expected = reference.layer_fisher(model, x, layer, active=active, variance=variance)
        assert_close(kfac_block(kfac, layer), expected, **EXACT)


@pytest.mark.parametrize("groups", [1, 2])
def test_single_datum_and_a_convolution_that_sees_all(groups):
    """One location: the kernel is as large as the image. Groups are blocks of the Fisher."""
    conv, x = nn.Conv2d(2, 4, 3, groups=groups), torch.randn(1, 2, 3, 3)
    model = conv_net(conv, x)
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact")
    observe(kfac, x)
    expected = reference.layer_fisher(model, x, "0")
    size = expected.shape[0] // groups
    on_diagonal = [expected[k * size :, k * size :][:size, :size] for k in range(groups)]
    assert_close(kfac_block(kfac, "0"), torch.block_diag(*on_diagonal), **EXACT)


def test_weights_in_both_factors_count_once():
    """Where the Jacobian does not depend on the sample, 1/n Σ wᵢFᵢ is what ``both`` gives."""
    model, x, weights = deep_linear(4, 3, 2), torch.randn(5, 4), torch.linspace(0.5, 4, 5)
    for weighting in ("both", "gradients"):
        kfac = gaussian(model, weighting=weighting)
        observe(kfac, x, weights=weights)
        expected = reference.layer_fisher(model, x, "0", variance=1.0, weights=weights)
        difference = torch.linalg.norm(kfac_block(kfac, "0") - expected)
        error = float(difference / torch.linalg.norm(expected))
        assert error < EXACT["rtol"] if weighting == "both" else error > 0.01


def test_exact_damping_of_a_single_layer_is_the_dense_preconditioner():
    """One linear layer, Gaussian: K-FAC with exact damping and the full Fisher agree."""
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    options = {"damping": 0.05, "ema": 1.0, "likelihood": "gaussian", "fisher": "exact"}
    assert_kfac_is_the_dense_fisher(model, x, **options)
