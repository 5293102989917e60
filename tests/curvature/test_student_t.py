"""The Student-t likelihood against quadrature, autograd, random draws and the dense Fisher."""

from __future__ import annotations

import pytest
import torch
from checks import assert_kfac_is_the_dense_fisher
from nets import mlp
from tolerances import DEVIATIONS, EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import DenseFisher
from ocar.curvature.fisher import Empirical, Exact, FisherRoot, Sampled, Sketched, StudentT

OUTPUTS = torch.tensor([[0.3, -1.2, 0.8], [2.0, 0.1, -0.5]], dtype=torch.float64)
VARIANCE = torch.tensor([0.25, 1.0, 9.0], dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distribution(outputs: Tensor, degrees: float) -> torch.distributions.StudentT:
    return torch.distributions.StudentT(degrees, outputs, VARIANCE.sqrt())


def information(degrees: float) -> Tensor:
    """E[score²] of each output by quadrature: r = σ tan φ makes the whole line finite."""
    angle = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * torch.pi - torch.pi / 2
    residuals = torch.tan(angle)[:, None] * VARIANCE.sqrt()
    residuals.requires_grad_()
    logs = distribution(torch.zeros(3, dtype=torch.float64), degrees).log_prob(residuals)
    (scores,) = torch.autograd.grad(logs.sum(), residuals)
    width = VARIANCE.sqrt() / torch.cos(angle)[:, None].square() * (torch.pi / len(angle))
    return (scores.square() * logs.exp() * width).sum(0).detach()


@pytest.mark.parametrize("degrees", [1.0, 3.0, 5.0, 100.0])
def test_exact_columns_are_a_root_of_the_information(degrees: float) -> None:
    columns = Exact().columns(StudentT(OUTPUTS, VARIANCE, degrees), generator())
    for sample in range(2):
        moment = columns[:, sample].mT @ columns[:, sample]
        assert_close(moment, torch.diag(information(degrees)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("degrees", [1.5, 5.0])
def test_empirical_columns_are_the_gradients_of_the_log_likelihood(degrees: float) -> None:
    targets = torch.randn(2, 3, dtype=torch.float64) * 4
    outputs = OUTPUTS.clone().requires_grad_()
    distribution(outputs, degrees).log_prob(targets).sum().backward()
    columns = Empirical().columns(StudentT(OUTPUTS, VARIANCE, degrees), generator(), targets)
    assert outputs.grad is not None
    assert_close(columns, outputs.grad[None], **EXACT)


@pytest.mark.parametrize("degrees", [2.0, 5.0])
@pytest.mark.parametrize("root", [Sampled(1), Sampled(3), Sketched(2, independent=True)], ids=str)
def test_the_mean_of_many_draws_is_the_information(root: FisherRoot, degrees: float) -> None:
    draws, source = 3000, generator(3)
    likelihood = StudentT(OUTPUTS, VARIANCE, degrees)
    columns = [root.columns(likelihood, source).flatten(1) for _ in range(draws)]
    moments = torch.stack([found.mT @ found for found in columns])
    error = (moments.mean(0) - torch.diag(information(degrees).repeat(2))).abs()
    assert bool((error <= DEVIATIONS * moments.std(0) / draws**0.5 + 1e-9).all())


def test_draws_have_the_tails_of_the_distribution() -> None:
    """Residuals are found from their scores, on the branch |r| < σ√ν; the rest has the others."""
    degrees, draws = 5.0, 20_000
    scores = StudentT(OUTPUTS[:1], VARIANCE, degrees).sampled(draws, generator())
    root = degrees**0.5 * VARIANCE.sqrt()
    residual = 0.5 * root  # a score below that of this residual: near the centre, or far out
    far = root.square() / residual
    score = (degrees + 1) * residual / (degrees * VARIANCE + residual.square())
    samples = distribution(torch.zeros(3, dtype=torch.float64), degrees).sample((200_000,)).abs()
    expected = ((samples < residual) | (samples > far)).double().mean(0)
    found = (scores[:, 0].abs() < score).double().mean(0)
    assert bool(((found - expected).abs() < DEVIATIONS * (0.25 / draws) ** 0.5).all())


def test_the_dense_fisher_has_the_information_of_each_output() -> None:
    """JᵀMJ by the Jacobian of autograd, with another σ² for each output."""
    torch.manual_seed(0)
    model, x = mlp().double(), torch.randn(6, 5, dtype=torch.float64)
    dense = DenseFisher(model, damping=0.01, ema=1.0, likelihood="student-t")
    with dense.record():
        outputs = model(x)
    dense.update(outputs, variance=VARIANCE)
    jacobian = _jacobian(model, x)
    middle = torch.diag(6 / 8 / VARIANCE)
    expected = torch.einsum("nop,oq,nqr->pr", jacobian, middle, jacobian) / len(x)
    assert_close(dense.average, expected, **EXACT)


def _jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """∂f/∂w of each sample, ``(n, outputs, parameters)``."""
    rows = []
    for row in model(x):
        grads = [torch.autograd.grad(f, list(model.parameters()), retain_graph=True) for f in row]
        rows.append(torch.stack([torch.cat([g.flatten() for g in found]) for found in grads]))
    return torch.stack(rows)


def test_kfac_of_a_single_layer_is_the_dense_fisher() -> None:
    """M is the same for all samples, so that the Fisher is a Kronecker product."""
    torch.manual_seed(1)
    model, x = nn.Linear(4, 3).double(), torch.randn(6, 4, dtype=torch.float64)
    options = {"damping": 0.05, "ema": 1.0, "likelihood": "student-t", "fisher": "exact"}
    options |= {"degrees_of_freedom": 3.0, "variance": 0.2}
    assert_kfac_is_the_dense_fisher(model, x, **options)
