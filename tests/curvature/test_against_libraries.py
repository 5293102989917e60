"""The same factors and preconditioned gradients as nngeometry 0.4 and curvlinops 3.

In eval mode and on the layers they support. Both spread constants differently
over A and G (nngeometry scales A by √columns and G by its inverse, curvlinops
divides A and not G by the number of locations), which neither the product
A ⊗ G nor a factored damping with π depends on.
"""

from __future__ import annotations

import pytest
import torch
from checks import average, parameters
from nets import MeanOverLocations, mlp, observe, set_gradients, token_mlp
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from ocar.curvature import KFAC
from ocar.curvature.fisher import Categorical, Sampled, parse_root

nngeometry = pytest.importorskip("nngeometry")
curvlinops = pytest.importorskip("curvlinops")

DAMPING = 0.01


def conv1d_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(2, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv1d(3, 2, 2, dilation=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def conv2d_net(*, batch_norm: bool = False) -> nn.Sequential:
    """Stride, padding, dilation, a 1×1 convolution, with and without bias."""
    norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()
    if batch_norm:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.normal_(norm.weight)
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        norm,
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, dilation=2, bias=False),
        nn.Tanh(),
        nn.Conv2d(3, 2, 1, stride=2),
        nn.Flatten(),
        nn.Linear(2, 3),
    )


def make(model: nn.Module, **options: object) -> KFAC:
    return KFAC(model, **{"damping": DAMPING, "ema": 1.0, "fisher": "exact", **options})


def kfac_matrix(kfac: KFAC, name: str) -> Tensor:
    """A ⊗ G of a layer without groups."""
    return torch.kron(average(kfac, name, "G")[0], average(kfac, name, "A")[0])


# --- nngeometry ---------------------------------------------------------------------------------

FOR_NNGEOMETRY = {
    "mlp": lambda: (mlp((5, 4, 4, 3)), torch.randn(6, 5)),
    "mlp-no-bias": lambda: (mlp(bias=False), torch.randn(6, 5)),
    "conv1d": lambda: (conv1d_net(), torch.randn(5, 2, 7)),
    "conv2d": lambda: (conv2d_net(), torch.randn(5, 2, 6, 5)),
    "batch-norm": lambda: (conv2d_net(batch_norm=True), torch.randn(5, 2, 6, 5)),
}


def nngeometry_kfac(model: nn.Module, x: Tensor, names: list[str], variant: str) -> object:
    """Their ``PMatKFAC``; batch normalisation is left out, as we do."""
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object.pspace import PMatKFAC

    layers = LayerCollection()
    for name in names:
        layers.add_layer_from_model(model, model.get_submodule(name))
    loader = DataLoader(TensorDataset(x.clone()), batch_size=2)
    return FIM(model, loader, PMatKFAC, variant=variant, layer_collection=layers)


@pytest.mark.parametrize("net", FOR_NNGEOMETRY)
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_nngeometry(net, likelihood):
    """Products of factors, and gradients times their π-damped inverse."""
    from nngeometry.object.vector import PVector

    model, x = FOR_NNGEOMETRY[net]()
    model.eval()
    kfac = make(model, likelihood=likelihood)
    observe(kfac, x)
    names = list(kfac.layers)
    variant = "classif_logits" if likelihood == "categorical" else "regression"
    theirs = nngeometry_kfac(model, x, names, variant)
    for name in names:
        a, g = theirs.data[name]
        assert_close(kfac_matrix(kfac, name), torch.kron(g, a), **EXACT)

    plain = set_gradients(model)
    gradient = {
        name: tuple(v for k, v in plain.items() if k.rpartition(".")[0] == name) for name in names
    }
    vector = PVector(theirs.generator.layer_collection, dict_repr=gradient)
    result = theirs.inverse(regul=DAMPING).mv(vector).to_dict()
    kfac.precondition_()
    for name in names:
        layer = model.get_submodule(name)
        own = [p.grad for p in (layer.weight, layer.bias) if p is not None]
        for one, other in zip(own, result[name], strict=True):
            assert_close(one, other, **EXACT)


# --- curvlinops ---------------------------------------------------------------------------------


def pooled_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2, dilation=2, padding="same", bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


FOR_CURVLINOPS = {
    "mlp": lambda: (mlp((5, 4, 4, 3)), torch.randn(6, 5)),
    "mlp-no-bias": lambda: (mlp(bias=False), torch.randn(6, 5)),
    "tokens": lambda: (token_mlp(3, 4, 3), torch.randn(4, 3, 3)),
    "deep-tokens": lambda: (
        nn.Sequential(
            nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), MeanOverLocations(), nn.Linear(2, 3)
        ),
        torch.randn(4, 2, 2, 3),
    ),
    "conv2d": lambda: (conv2d_net(), torch.randn(5, 2, 6, 5)),
    "pooled": lambda: (pooled_net(), torch.randn(5, 2, 5, 5)),
}  # fmt: skip


def loss_and_scale(loss: str, n: int, outputs: int) -> tuple[nn.Module, dict[str, object], float]:
    """A loss, our likelihood for it, and how many times our matrix theirs is.

    A sum over the batch where we take the mean is n times as much. MSELoss has no
    ½, so it is σ² = ½; its mean goes over the outputs too.
    """
    kind, reduction = loss.split("-")
    scale = float(n) if reduction == "sum" else 1.0
    if kind == "ce":
        return nn.CrossEntropyLoss(reduction=reduction), {"likelihood": "categorical"}, scale
    variance = 0.5 if reduction == "sum" else 0.5 * outputs
    options = {"likelihood": "gaussian", "variance": variance}
    return nn.MSELoss(reduction=reduction), options, scale


def curvlinops_kfac(
    model: nn.Module, loss: nn.Module, x: Tensor, y: Tensor, kfac: KFAC, **options: object
) -> object:
    return curvlinops.KFACLinearOperator(
        model,
        loss,
        parameters(kfac),
        [(x[:2], y[:2]), (x[2:], y[2:])],
        kfac_approx=kfac.sharing,
        separate_weight_and_bias=False,
        **options,
    )


def assert_products_agree(kfac: KFAC, theirs: object, scale: float) -> None:
    if not theirs.state_dict()["input_covariances"]:  # a second time would add to the first
        theirs.compute_kronecker_factors()
    state = theirs.state_dict()
    for name in kfac.layers:
        product = torch.kron(state["gradient_covariances"][name], state["input_covariances"][name])
        assert_close(scale * kfac_matrix(kfac, name), product, **EXACT)


def targets_for(loss: str, n: int, outputs: int) -> Tensor:
    return torch.randint(outputs, (n,)) if loss.startswith("ce") else torch.randn(n, outputs)


@pytest.mark.parametrize("net", FOR_CURVLINOPS)
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("loss", ["ce-mean", "ce-sum", "mse-mean", "mse-sum"])
def test_curvlinops_type_2(net, sharing, loss):
    """Their exact Fisher: products of factors."""
    model, x = FOR_CURVLINOPS[net]()
    function, options, scale = loss_and_scale(loss, len(x), 3)
    kfac = make(model.eval(), sharing=sharing, **options)
    observe(kfac, x)
    y = targets_for(loss, len(x), 3)
    theirs = curvlinops_kfac(model, function, x, y, kfac, fisher_type="type-2")
    assert_products_agree(kfac, theirs, scale)


@pytest.mark.parametrize("net", FOR_CURVLINOPS)
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_curvlinops_inverse(net, sharing, kind):
    """Gradients times their damped inverse, heuristic (with π) and exact."""
    model, x = FOR_CURVLINOPS[net]()
    kfac = make(model.eval(), sharing=sharing, damping_kind=kind)
    observe(kfac, x)
    y = torch.randint(3, (len(x),))
    theirs = curvlinops_kfac(model, nn.CrossEntropyLoss(), x, y, kfac, fisher_type="type-2")
    inverse = curvlinops.KFACInverseLinearOperator(
        theirs,
        damping=DAMPING,
        use_heuristic_damping=kind == "factored",
        use_exact_damping=kind == "exact",
        min_damping=0.0,
    )
    set_gradients(model)
    expected = inverse @ [p.grad.clone() for p in parameters(kfac)]
    kfac.precondition_()
    for parameter, other in zip(parameters(kfac), expected, strict=True):
        assert_close(parameter.grad, other, **EXACT)


@pytest.mark.parametrize("net", FOR_CURVLINOPS)
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("loss", ["ce-mean", "ce-sum", "mse-sum"])
def test_curvlinops_empirical(net, sharing, loss):
    model, x = FOR_CURVLINOPS[net]()
    function, options, scale = loss_and_scale(loss, len(x), 3)
    kfac = make(model.eval(), sharing=sharing, fisher="empirical", **options)
    y = targets_for(loss, len(x), 3)
    observe(kfac, x, targets=y)
    theirs = curvlinops_kfac(model, function, x, y, kfac, fisher_type="empirical")
    assert_products_agree(kfac, theirs, scale)


@pytest.mark.parametrize("net", ["mlp", "conv2d"])
@pytest.mark.parametrize("draws", [1, 3])
def test_curvlinops_monte_carlo(net, draws, monkeypatch):
    """Their Monte-Carlo Fisher, when both draw the same labels."""
    model, x = FOR_CURVLINOPS[net]()
    kfac = make(model.eval(), fisher=f"sampled({draws})")
    outputs = model(x).detach()
    twin = torch.Generator()
    twin.set_state(kfac.state_dict()["generator"])
    root = parse_root(f"sampled({draws})")
    assert root == Sampled(draws)
    scores = root.columns(Categorical(outputs), twin) * draws**0.5
    labels = (scores + outputs.softmax(1)).argmax(-1)  # a score is e_y − p

    observe(kfac, x)
    theirs = curvlinops.KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        parameters(kfac),
        [(x, labels[0])],
        fisher_type="mc",
        mc_samples=draws,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    deal = iter(labels)
    monkeypatch.setattr(theirs, "draw_label", lambda output: next(deal))
    assert_products_agree(kfac, theirs, 1.0)
