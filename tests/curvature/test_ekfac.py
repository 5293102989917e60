"""E-KFAC against the dense Fisher of each layer, rotated into its eigenbasis."""

from __future__ import annotations

from itertools import pairwise

import pytest
import reference
import torch
from checks import average, layer_gradient, parameters
from nets import MeanOverLocations, batch_norm_net, conv_net, mlp, observe, set_gradients, token_mlp
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import EKFAC, KFAC
from ocar.errors import ConfigError

DAMPING = 0.01
NETS = {
    "mlp": lambda: (mlp(), torch.randn(4, 5)),
    "mlp-no-bias": lambda: (mlp(bias=False), torch.randn(4, 5)),
    "tokens": lambda: (token_mlp(3, 4, 3), torch.randn(4, 3, 3)),
    "conv": lambda: (
        conv_net(nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.zeros(1, 2, 5, 4)),
        torch.randn(4, 2, 5, 4),
    ),
    "groups": lambda: (
        conv_net(nn.Conv1d(2, 4, 3, dilation=2, groups=2), torch.zeros(1, 2, 7)),
        torch.randn(4, 2, 7),
    ),
    "eval": lambda: (batch_norm_net().eval(), torch.randn(4, 2, 5, 5)),
}
EVERY_NET = pytest.mark.parametrize("net", NETS)
OPTIONS = {
    "expand": {},
    "reduce": {"sharing": "reduce"},
    "weights": {"weighting": "gradients"},
    "weights in both": {"weighting": "both"},
}


def make(model: nn.Module, **options: object) -> EKFAC:
    own = {"damping": DAMPING, "ema": 1.0, "fisher": "exact", "basis_every": 1, **options}
    return EKFAC(model, **own)


def matrix_names(curvature: EKFAC) -> list[str]:
    return [name for name, layer in curvature.layers.items() if "S" in statistics(curvature, name)]


def statistics(curvature: EKFAC, name: str) -> set[str]:
    names = (n for block in curvature.blocks for n in block.buffer.shapes)
    return {n.rpartition(".")[2] for n in names if n.rpartition(".")[0] == name}


def group_fishers(
    curvature: EKFAC, x: Tensor, name: str, weights: Tensor | None = None, **options: object
) -> list[Tensor]:
    """The dense Fisher of each group of a layer, for vec of ``(d_out, d_in)`` row by row."""
    model = curvature.model
    fisher = reference.layer_fisher(model, x, name, weights=weights, **options)
    groups = getattr(model.get_submodule(name), "groups", 1)
    size = len(fisher) // groups
    return [fisher[k * size :, k * size :][:size, :size] for k in range(groups)]


def bases(curvature: EKFAC, name: str) -> list[Tensor]:
    """U_G ⊗ U_A of each group, one eigenvector a column."""
    both = zip(basis(curvature, name, "UG"), basis(curvature, name, "UA"), strict=True)
    return [torch.kron(g, a) for g, a in both]


def basis(curvature: EKFAC, name: str, key: str) -> Tensor:
    """Eigenvectors, one a column; they are stored without the identity."""
    stored = average(curvature, name, key)
    return stored + torch.eye(stored.shape[-1])


# --- second moments -----------------------------------------------------------------------------


@EVERY_NET
@pytest.mark.parametrize("case", OPTIONS)
def test_the_second_moments_are_the_diagonal_of_the_rotated_fisher(net: str, case: str) -> None:
    """In the eigenbasis of A and G, from the second estimate on."""
    model, x = NETS[net]()
    weights = torch.linspace(0.5, 2.0, len(x)) if "weights" in case else None
    curvature = make(model, **OPTIONS[case])
    observe(curvature, x, weights=weights)
    for batch in (x + 0.1, x - 0.1):
        observe(curvature, batch, weights=weights)
        for name in matrix_names(curvature):
            fishers = group_fishers(curvature, batch, name, weights)
            for fisher, u, s in zip(
                fishers, bases(curvature, name), average(curvature, name, "S"), strict=True
            ):
                assert_close(s.flatten(), (u.mT @ fisher @ u).diagonal(), **EXACT)


def test_the_moments_of_a_masked_head() -> None:
    model, x, active = mlp((5, 4, 6)), torch.randn(4, 5), torch.arange(6) < 4
    curvature = make(model)
    for batch in (x, x + 0.1):
        observe(curvature, batch, active=active)
    for name in ("0", "2"):
        (fisher,), (u,) = (
            group_fishers(curvature, batch, name, active=active),
            bases(curvature, name),
        )
        expected = (u.mT @ fisher @ u).diagonal()
        assert_close(average(curvature, name, "S").flatten(), expected, **EXACT)


@EVERY_NET
def test_the_first_estimate_is_that_of_kfac(net: str) -> None:
    """(G ⊗ A + τI)⁻¹ ∇: a first basis of axes would see no correlations."""
    model, x = NETS[net]()
    curvature = make(model, basis_every=50)
    observe(curvature, x)
    set_gradients(model)
    expected = {}
    for name in matrix_names(curvature):
        factors = zip(average(curvature, name, "G"), average(curvature, name, "A"), strict=True)
        gradient = layer_gradient(model.get_submodule(name))
        damped = [torch.kron(g, a) for g, a in factors]
        damped = [matrix + DAMPING * torch.eye(len(matrix)) for matrix in damped]
        pairs = zip(damped, gradient, strict=True)
        expected[name] = torch.stack([torch.linalg.solve(m, g.flatten()) for m, g in pairs])
    curvature.precondition_()
    for name, gradient in expected.items():
        found = layer_gradient(model.get_submodule(name))
        assert_close(found, gradient.view_as(found), **EXACT)


@EVERY_NET
def test_the_basis_is_that_of_the_factors(net: str) -> None:
    """Orthogonal, and A and G are diagonal in it."""
    model, x = NETS[net]()
    curvature = make(model)
    observe(curvature, x)
    factors = {n: [average(curvature, n, k).clone() for k in "AG"] for n in matrix_names(curvature)}
    observe(curvature, x + 0.1)
    for name, matrices in factors.items():
        for matrix, key in zip(matrices, ("UA", "UG"), strict=True):
            u = basis(curvature, name, key)
            assert_close(u.mT @ u, torch.eye(u.shape[-1]).expand_as(u), **EXACT)
            rotated = u.mT @ matrix @ u
            diagonal = rotated.diagonal(dim1=-2, dim2=-1)
            assert_close(rotated, torch.diag_embed(diagonal), **EXACT)


# --- gradients ----------------------------------------------------------------------------------


@EVERY_NET
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_gradients_are_divided_in_the_eigenbasis(net: str, sharing: str) -> None:
    """U((Uᵀ g) / (S + τ)) with the dense Fisher for S."""
    model, x = NETS[net]()
    curvature = make(model, sharing=sharing)
    for batch in (x, x + 0.1):
        observe(curvature, batch)
    set_gradients(model)
    expected = {}
    for name in matrix_names(curvature):
        gradient, groups = layer_gradient(model.get_submodule(name)), []
        fishers = group_fishers(curvature, x + 0.1, name)
        for fisher, u, g in zip(fishers, bases(curvature, name), gradient, strict=True):
            s = (u.mT @ fisher @ u).diagonal()
            groups.append((u @ ((u.mT @ g.flatten()) / (s + DAMPING))).view_as(g))
        expected[name] = torch.stack(groups)
    curvature.precondition_()
    for name, gradient in expected.items():
        assert_close(layer_gradient(model.get_submodule(name)), gradient, **EXACT)


def test_layers_without_a_gradient_are_left_alone() -> None:
    model, x = NETS["mlp"]()
    curvature = make(model)
    plain = set_gradients(model)
    curvature.precondition_()  # no update yet
    assert all(torch.equal(p.grad, plain[n]) for n, p in model.named_parameters())
    observe(curvature, x)
    model[0].weight.grad = None
    curvature.precondition_()
    assert torch.equal(model[0].bias.grad, plain["0.bias"])
    assert not torch.equal(model[2].weight.grad, plain["2.weight"])


# --- against K-FAC and the Fisher ---------------------------------------------------------------


def errors(net: str, sharing: str) -> list[tuple[float, float, float]]:
    """‖F‖ and the Frobenius errors of E-KFAC and of K-FAC, of each group of each layer."""
    model, x = NETS[net]()
    exact, factored = make(model, sharing=sharing), KFAC(
        model, damping=DAMPING, ema=1.0, fisher="exact", sharing=sharing
    )  # fmt: skip
    for _ in range(2):  # the second time in the eigenbasis of the same A and G
        observe(exact, x)
    observe(factored, x)
    found = []
    for name in matrix_names(exact):
        parts = zip(
            group_fishers(exact, x, name),
            bases(exact, name),
            average(exact, name, "S"),
            average(factored, name, "A"),
            average(factored, name, "G"),
            strict=True,
        )
        for fisher, u, s, a, g in parts:
            ours = (fisher - u @ torch.diag(s.flatten()) @ u.mT).norm()
            found.append(
                (float(fisher.norm()), float(ours), float((fisher - torch.kron(g, a)).norm()))
            )
    return found


@EVERY_NET
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_it_is_never_further_from_the_fisher_than_kfac(net: str, sharing: str) -> None:
    found = errors(net, sharing)
    for size, ours, theirs in found:
        assert ours <= theirs * (1 + 1e-9) + 1e-9 * size
    assert any(ours < 0.99 * theirs for _, ours, theirs in found)


def test_it_is_exact_where_kfac_is() -> None:
    """A deep linear net with a Gaussian likelihood."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5), nn.Linear(5, 2)), torch.randn(6, 4)
    curvature = make(model, likelihood="gaussian")
    for _ in range(2):
        observe(curvature, x)
    for name in ("0", "1", "2"):
        (u,), s = bases(curvature, name), average(curvature, name, "S")
        expected = reference.layer_fisher(model, x, name, variance=1.0)
        assert_close(u @ torch.diag(s.flatten()) @ u.mT, expected, **EXACT)


FOR_CURVLINOPS = {
    "mlp": lambda: (mlp((5, 4, 4, 3)), torch.randn(6, 5)),
    "tokens": lambda: (token_mlp(3, 4, 3), torch.randn(4, 3, 3)),
    "deep-tokens": lambda: (
        nn.Sequential(
            nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), MeanOverLocations(), nn.Linear(2, 3)
        ),
        torch.randn(4, 2, 2, 3),
    ),
    # More samples than inputs, and no two inputs alike: the eigenbasis is unique.
    "conv": lambda: (
        conv_net(nn.Conv2d(2, 3, 2), torch.zeros(1, 2, 5, 4)), torch.randn(30, 2, 5, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("net", FOR_CURVLINOPS)
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_curvlinops(net: str, sharing: str) -> None:
    """The same matrix as their ``EKFACLinearOperator``."""
    curvlinops = pytest.importorskip("curvlinops")
    model, x = FOR_CURVLINOPS[net]()
    curvature = make(model.eval(), sharing=sharing)
    for _ in range(2):
        observe(curvature, x)
    theirs = curvlinops.EKFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        parameters(curvature),
        [(x, torch.randint(3, (len(x),)))],
        fisher_type="type-2",
        kfac_approx=sharing,
        separate_weight_and_bias=False,
    )
    set_gradients(model)
    expected = theirs @ [p.grad.clone() for p in parameters(curvature)]
    for name in matrix_names(curvature):
        layer = model.get_submodule(name)
        (u,), s = bases(curvature, name), average(curvature, name, "S")
        gradient = layer_gradient(layer)
        product = (u @ (s.flatten() * (u.mT @ gradient.flatten()))).view_as(gradient)
        position = next(i for i, p in enumerate(parameters(curvature)) if p is layer.weight)
        other = reference.as_matrix(layer, *expected[position : position + 2])
        assert_close(product, other, **EXACT)


# --- when the basis is renewed ------------------------------------------------------------------


def test_the_basis_is_renewed_every_few_batches() -> None:
    """And sooner at first, when the estimates change most."""
    model = mlp()
    curvature = make(model, basis_every=6, ema=0.5)
    history = [torch.zeros(())]
    for _ in range(14):
        observe(curvature, torch.randn(4, 5))
        history.append(average(curvature, "0", "UA").clone())
    changed = [not torch.equal(one, two) for one, two in pairwise(history)]
    assert [batch for batch, new in enumerate(changed) if new] == [0, 2, 4, 6, 12]


def test_after_a_renewal_the_moments_start_as_those_of_kfac() -> None:
    """Then the moments of the batch are mixed in."""
    model, x = NETS["mlp"]()
    curvature = make(model, basis_every=2, ema=0.25)
    for batch in (x, x + 0.1):
        observe(curvature, batch)
    a, g = (average(curvature, "0", key).clone() for key in "AG")
    observe(curvature, x - 0.1)
    products = torch.linalg.eigvalsh(g).unsqueeze(-1) * torch.linalg.eigvalsh(a).unsqueeze(-2)
    (u,), fisher = bases(curvature, "0"), reference.layer_fisher(model, x - 0.1, "0")
    measured = (u.mT @ fisher @ u).diagonal().view_as(products)
    assert_close(average(curvature, "0", "S"), 0.75 * products + 0.25 * measured, **EXACT)


def test_a_basis_must_be_renewed_some_time() -> None:
    with pytest.raises(ConfigError) as caught:
        EKFAC(basis_every=0)
    assert str(caught.value) == "Invalid basis_every=0. Must be at least 1."


# --- heads --------------------------------------------------------------------------------------


def grow(head: nn.Linear, outputs: int) -> None:
    weight, bias = torch.randn(outputs, head.in_features), torch.randn(outputs)
    weight[: head.out_features], bias[: head.out_features] = head.weight.data, head.bias.data
    head.weight, head.bias, head.out_features = nn.Parameter(weight), nn.Parameter(bias), outputs


def test_the_head_grows() -> None:
    """New outputs start with eigenvectors along their axes; moments start again."""
    model, x = mlp((5, 4, 3)), torch.randn(4, 5)
    curvature = make(model, basis_every=4, ema=0.5)
    for step in range(5):
        observe(curvature, x + 0.1 * step)
    before = basis(curvature, "2", "UG")
    assert not torch.equal(before, torch.eye(3)[None])
    grow(model[2], 5)
    observe(curvature, x)
    after = basis(curvature, "2", "UG")
    assert_close(after, torch.block_diag(before[0], torch.eye(2))[None], **EXACT)
    (fisher,), (u,) = group_fishers(curvature, x, "2"), bases(curvature, "2")
    s = (u.mT @ fisher @ u).diagonal()
    assert_close(average(curvature, "2", "S").flatten(), s, **EXACT)  # taken whole
    set_gradients(model)
    gradient = layer_gradient(model[2])
    expected = (u @ ((u.mT @ gradient.flatten()) / (s + DAMPING))).view_as(gradient)
    curvature.precondition_()
    assert_close(layer_gradient(model[2]), expected, **EXACT)
    for step in range(4):  # across the next renewal
        observe(curvature, x + 0.1 * step)


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_masked_head_gives_the_update_of_a_smaller_one(batches: int) -> None:
    """Also in an eigenbasis in which directions without curvature are mixed."""
    capacity, count, results = 6, 3, []
    weight, bias = torch.randn(capacity, 4), torch.randn(capacity)
    body = nn.Linear(5, 4).state_dict()
    xs = [torch.randn(4, 5) for _ in range(batches)]
    for size in (capacity, count):
        model = mlp((5, 4, size))
        model[0].load_state_dict(body)
        model[2].weight.data, model[2].bias.data = weight[:size].clone(), bias[:size].clone()
        curvature = make(model, basis_every=1, ema=0.3)
        active = torch.arange(size) < count
        for x in xs:
            outputs = observe(curvature, x, active=active)
        model.zero_grad()
        nn.functional.cross_entropy(outputs[:, :count], torch.tensor([0, 2, 1, 1])).backward()
        curvature.precondition_()
        assert not model[2].weight.grad[count:].abs().gt(1e-9).any()
        results.append([*(p.grad for p in model[0].parameters()), model[2].weight.grad[:count]])
    for masked, small in zip(*results, strict=True):
        assert_close(masked, small, **EXACT)
