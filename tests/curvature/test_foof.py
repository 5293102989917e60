"""FOOF against a dense inverse of the inputs' second moments."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import average, layer_gradient
from nets import NETS, mlp, observe, set_gradients
from tolerances import EXACT
from torch import nn
from torch.testing import assert_close

from ocar.curvature import FOOF, KFAC

DAMPING = 0.03
EVERY_NET = pytest.mark.parametrize("net", NETS)


def make(model: nn.Module, **options: object) -> FOOF:
    return FOOF(model, **{"damping": DAMPING, "ema": 1.0, **options})


@EVERY_NET
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("weighting", ["gradients", "both"])
def test_gradients_are_multiplied_with_the_dense_inverse(
    net: str, sharing: str, weighting: str
) -> None:
    model, x = NETS[net]()
    weights = torch.linspace(0.5, 4.0, len(x))
    foof = make(model, sharing=sharing, weighting=weighting)
    observe(foof, x, weights=weights)
    names = list(foof.layers)
    factors = reference.kronecker_factors(
        model, x, names, sharing=sharing, weights=weights, weighting=weighting
    )
    plain, expected = set_gradients(model), {}
    for name in names:
        a, gradient = factors[name][0], layer_gradient(model.get_submodule(name))
        assert_close(average(foof, name, "A"), a, **EXACT)
        damped = a + DAMPING * torch.eye(a.shape[-1])
        expected[name] = gradient @ torch.linalg.inv(damped)
    foof.precondition_()
    for name in names:
        assert_close(layer_gradient(model.get_submodule(name)), expected[name], **EXACT)
    covered = {f"{name}.{key}" for name in names for key in ("weight", "bias")}
    for name, parameter in model.named_parameters():
        if name not in covered:
            assert torch.equal(parameter.grad, plain[name])


def test_it_does_not_depend_on_the_predictions() -> None:
    """The test above can fail: K-FAC's step depends on the root of the Fisher."""
    x = torch.randn(4, 5)
    results: dict[str, list[torch.Tensor]] = {"foof": [], "kfac": []}
    for root in ("exact", "sampled(1)"):
        for name, kind in (("foof", FOOF), ("kfac", KFAC)):
            torch.manual_seed(1)
            model = mlp()
            curvature = kind(model, damping=DAMPING, ema=1.0, fisher=root)
            observe(curvature, x)
            set_gradients(model)
            curvature.precondition_()
            results[name].append(model[0].weight.grad)
    assert torch.equal(*results["foof"])
    assert not torch.allclose(*results["kfac"])


def test_averages_move_by_ema_after_a_first_estimate_taken_whole() -> None:
    model, x1, x2 = mlp(), torch.randn(4, 5), torch.randn(4, 5)
    foof = make(model, ema=0.25)
    first, second = (reference.kronecker_factors(model, x, ["0"])["0"][0] for x in (x1, x2))
    observe(foof, x1)
    assert_close(average(foof, "0", "A"), first, **EXACT)
    observe(foof, x2)
    assert_close(average(foof, "0", "A"), 0.75 * first + 0.25 * second, **EXACT)


def test_only_inputs_have_statistics() -> None:
    foof = make(mlp())
    assert list(foof.blocks[0].buffer.shapes) == ["0.A", "2.A"]


@EVERY_NET
def test_eigenvalues_are_those_of_the_dense_matrix(net: str) -> None:
    model, x = NETS[net]()
    foof = make(model)
    observe(foof, x)
    for name, values in foof.eigenvalues().items():
        a = average(foof, name, "A")
        outputs = foof.layers[name].d_out
        dense = torch.block_diag(*(torch.kron(torch.eye(outputs), matrix) for matrix in a))
        expected = torch.linalg.eigvalsh(dense + DAMPING * torch.eye(len(dense)))
        assert_close(values, expected, **EXACT)


def test_embeddings_keep_their_gradient_and_are_named() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match=r"No curvature for 1 layer\(s\).*: 0 \(Embedding\)\."):
        foof = make(model)
    observe(foof, torch.randint(5, (4, 2)))
    plain = set_gradients(model)
    foof.precondition_()
    assert torch.equal(model[0].weight.grad, plain["0.weight"])
    assert not torch.equal(model[2].weight.grad, plain["2.weight"])
