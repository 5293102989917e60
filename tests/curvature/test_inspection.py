"""What can be asked of a K-FAC curvature, and what it says to a batch that is not finite."""

from __future__ import annotations

import pytest
import torch
from checks import average, averages
from nets import batch_norm_net, mlp, observe, set_gradients
from reference import damped_block
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

import ocar
from ocar.curvature import EKFAC, FOOF, KFAC, DenseFisher
from ocar.errors import NumericalError


def dense_eigenvalues(
    kfac: KFAC, name: str, damping: float, kind: str, active: int | None = None
) -> Tensor:
    parts = []
    for a, g in zip(average(kfac, name, "A"), average(kfac, name, "G"), strict=True):
        g = g if active is None else g[:active, :active]
        parts.append(torch.linalg.eigvalsh(damped_block(a, g, damping, kind=kind)))
    return torch.cat(parts).sort().values


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_eigenvalues_are_those_of_the_dense_damped_matrix(kind):
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact", damping_kind=kind)
    assert kfac.eigenvalues() == {}
    observe(kfac, x)
    values = kfac.eigenvalues()
    assert list(values) == ["0", "3", "7"]
    for name, own in values.items():
        assert_close(own, dense_eigenvalues(kfac, name, 0.01, kind), **EXACT)


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_eigenvalues_of_a_masked_head_are_those_of_a_smaller_one(kind):
    model, x = mlp((5, 4, 6)), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact", damping_kind=kind)
    observe(kfac, x, active=torch.arange(6) < 3)
    values = kfac.eigenvalues()["2"]
    assert_close(values, dense_eigenvalues(kfac, "2", 0.01, kind, active=3), **EXACT)


def test_eigenvalues_follow_the_damping_of_the_step():
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=lambda step: 0.5 / (step + 1), ema=1.0, fisher="exact")
    observe(kfac, x)
    for damping in (0.5, 0.25):
        expected = dense_eigenvalues(kfac, "0", damping, "factored")
        assert_close(kfac.eigenvalues()["0"], expected, **EXACT)
        set_gradients(model)
        kfac.precondition_()


def test_eigenvalues_of_norm_layers_and_embeddings():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(8, 3))
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact", norm_layers=True)
    observe(kfac, torch.randint(5, (4, 2)))
    values = kfac.eigenvalues()
    diagonal = average(kfac, "0", "F")
    assert_close(values["0"], (diagonal + 0.01).flatten().sort().values, **EXACT)
    units = torch.block_diag(*average(kfac, "1", "F"))
    expected = torch.linalg.eigvalsh(units + 0.01 * torch.eye(8))
    assert_close(values["1"], expected, **EXACT)


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_memory_usage_counts_every_byte(kind):
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact", damping_kind=kind)
    # A and G of each layer: 18² + 4², two groups of 19² + 2², 17² + 3².
    factors = (18**2 + 4**2) + 2 * (19**2 + 2**2) + (17**2 + 3**2)
    assert kfac.memory_usage() == 8 * 2 * factors  # averages and estimates
    observe(kfac, x)
    # The inverses, or eigenvectors and a denominator for each weight.
    others = 18 * 4 + 2 * 19 * 2 + 17 * 3 if kind == "exact" else 0
    assert kfac.memory_usage() == 8 * (3 * factors + others)


@pytest.mark.parametrize("kind", [KFAC, EKFAC, FOOF])
def test_memory_usage_counts_inverses_of_all_kinds(kind):
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    curvature = kind(model, damping=0.01, ema=1.0, norm_layers=True)
    before = curvature.memory_usage()
    observe(curvature, torch.randn(4, 5))
    inputs, outputs, units = 6**2 + 5**2, 4**2 + 3**2, 4 * 2 * 2
    moments = 6 * 4 + 5 * 3
    statistics = {
        KFAC: inputs + outputs + units,
        EKFAC: 2 * (inputs + outputs) + moments + units,
        FOOF: inputs,
    }[kind]
    assert before == 8 * 2 * statistics
    assert curvature.memory_usage() == 8 * 3 * statistics


def test_memory_usage_halves_in_single_precision():
    sizes = []
    for dtype in (torch.float64, torch.float32):
        kfac = KFAC(mlp().to(dtype), damping=0.01, ema=1.0)
        observe(kfac, torch.randn(4, 5, dtype=dtype))
        sizes.append(kfac.memory_usage())
    assert sizes[0] == 2 * sizes[1]


def test_norm_ratio_is_after_over_before():
    """Of all gradients, also those of layers that keep theirs."""
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0, track_norms=True)
    assert kfac.norm_ratio is None
    observe(kfac, x)

    def norm() -> Tensor:
        return torch.cat([p.grad.flatten() for p in model.parameters()]).norm()

    set_gradients(model)
    before = norm()
    kfac.precondition_()
    assert_close(kfac.norm_ratio, norm() / before, **EXACT)


@pytest.mark.parametrize("curvature", ["kfac", "ekfac", "foof", "dense"])
def test_a_learner_reports_the_norm_ratio(curvature):
    settings = {"lr": 0.1, "tau": 0.01, "tau_step": 0.0, "ema": 0.3, "memory": 10}
    learner = ocar.OCAR(mlp(), track_norms=True, curvature=curvature, **settings)
    learner.learn(torch.randn(4, 5), torch.arange(4) % 3)
    assert learner.transform.report()["norm_ratio"] > 0
    assert learner.transform.curvature.step == 0  # the learner counts its steps


def test_norm_ratio_is_not_kept_unasked():
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0)
    observe(kfac, x)
    set_gradients(model)
    kfac.precondition_()
    assert kfac.norm_ratio is None


# --- batches that are not finite ----------------------------------------------------------------

ROOTS = ["exact", "sketched(2)", "sketched(2, independent)", "sampled(2)", "top(1)"]
KINDS = {
    "kfac": (KFAC, {}),
    "kfac-exact-damping": (KFAC, {"damping_kind": "exact"}),
    "ekfac": (EKFAC, {"basis_every": 1}),
    "foof": (FOOF, {}),
    "norm": (KFAC, {"norm_layers": True}),
}


def state_of(curvature):
    return {name: value.clone() for name, value in curvature.state_dict().items()}


def assert_state(curvature, before):
    after = curvature.state_dict()
    assert after.keys() == before.keys()
    for key, value in after.items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_batch_that_is_not_finite_changes_nothing(root, bad):
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.1, ema=0.3, fisher=root)
    observe(kfac, x)
    before = state_of(kfac)
    x[2, 3] = bad
    with pytest.raises(NumericalError, match=r"not finite in layer\(s\) 0"):
        observe(kfac, x)
    assert_state(kfac, before)


class Overflow(nn.Module):
    """Numbers so large that their squares are infinite."""

    on = False

    def forward(self, x: Tensor) -> Tensor:
        return x * 1e200 if self.on else x


def overflowing() -> nn.Sequential:
    """Its inputs are finite and so are its outputs; layer 3 overflows, layer 1 does not."""
    return nn.Sequential(
        nn.Linear(5, 4), nn.LayerNorm(4), Overflow(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 6)
    )


@pytest.mark.parametrize("batches", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_not_finite_in_one_layer_changes_no_other(kind, batches):
    """Nor does it count as a batch, or restart the head for a new number of classes."""
    make, options = KINDS[kind]
    results = []
    for spoiled in (False, True):
        torch.manual_seed(2)
        model = overflowing()
        curvature = make(model, damping=lambda step: 0.1, ema=0.3, fisher="sketched(2)", **options)
        for _ in range(batches):
            observe(curvature, torch.randn(4, 5), active=torch.arange(6) < 3)
        x = torch.randn(4, 5)
        if spoiled:
            before = state_of(curvature)
            model[2].on = True
            with pytest.raises(NumericalError, match=r"not finite in layer\(s\) .*3.*, by step 0"):
                observe(curvature, x, active=torch.arange(6) < 5)
            model[2].on = False
            assert_state(curvature, before)
        set_gradients(model)
        curvature.precondition_()
        results.append([p.grad.clone() for p in model.parameters()])
        observe(curvature, x, active=torch.arange(6) < 3)  # and it goes on
        set_gradients(model)
        curvature.precondition_()
        results[-1] += [p.grad.clone() for p in model.parameters()]
    assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("batches", [0, 2])
def test_a_full_fisher_that_is_not_finite_changes_nothing(batches):
    model, x = mlp(), torch.randn(4, 5)
    dense = DenseFisher(model, damping=0.1, ema=0.3, fisher="sampled")
    for _ in range(batches):
        observe(dense, x)
    before = state_of(dense)
    with pytest.raises(NumericalError):
        observe(dense, torch.full_like(x, float("inf")))
    assert_state(dense, before)
    plain = set_gradients(model)
    dense.precondition_()
    assert torch.equal(model[0].weight.grad, plain["0.weight"]) == (batches == 0)


def test_the_layer_that_is_not_finite_is_named():
    """The input is finite and so are the outputs; one layer in between overflows."""

    class Overflow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1e200

    model = nn.Sequential(nn.Linear(5, 4), Overflow(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    kfac = KFAC(model, damping=0.1, ema=0.3, fisher="exact")
    with pytest.raises(NumericalError) as caught:
        observe(kfac, torch.randn(4, 5))
    assert str(caught.value) == (
        "The curvature of a batch was not finite in layer(s) 2, by step 0. Nothing was changed. "
        "Check the inputs for extreme values, or try a smaller learning rate."
    )


@pytest.mark.parametrize("weights", [[1.0, -1.0, 1.0, 1.0], [1.0, float("nan"), 1.0, 1.0]])
def test_weights_without_a_root_are_refused(weights):
    kfac = KFAC(mlp(), damping=0.1, ema=0.3)
    before = kfac.state_dict()
    with pytest.raises(NumericalError):
        observe(kfac, torch.randn(4, 5), weights=torch.tensor(weights))
    assert kfac.state_dict().keys() == before.keys()
    assert not any(statistic.any() for statistic in averages(kfac).values())
    plain = set_gradients(kfac.model)
    kfac.precondition_()  # there is still no curvature
    assert torch.equal(kfac.model[0].weight.grad, plain["0.weight"])


FAILING = {
    "kfac": (KFAC, {}, "G", "the outputs of layer '2'"),
    "norm": (KFAC, {"norm_layers": True}, "F", "layer '1'"),
    "foof": (FOOF, {}, "A", "layer '2'"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_matrix_that_cannot_be_inverted_is_named_and_the_old_inverse_stays(case):
    kind, options, key, name = FAILING[case]
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    curvature = kind(model, damping=1e-3, ema=0.1, fisher="exact", **options)
    x = torch.randn(4, 5)
    observe(curvature, x)
    results = []
    for spoiled in (False, True):
        if spoiled:
            layer = "1" if key == "F" else "2"
            average(curvature, layer, key).diagonal(dim1=1, dim2=2).sub_(10.0)
            with pytest.raises(NumericalError, match=f"The curvature of {name} is not positive"):
                observe(curvature, x)
        set_gradients(model)
        curvature.precondition_()
        results.append([p.grad.clone() for p in model.parameters()])
    if case == "kfac":  # all of its layers keep their inverse
        assert_close(*results, rtol=0, atol=0)
