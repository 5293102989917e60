"""What can be asked of a K-FAC curvature, and what it says to a batch that is not finite."""

from __future__ import annotations

import pytest
import torch
from nets import batch_norm_net, mlp, observe, set_gradients
from reference import damped_block
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC
from ocar.errors import NumericalError


def dense_eigenvalues(
    kfac: KFAC, name: str, damping: float, kind: str, active: int | None = None
) -> Tensor:
    averages, parts = kfac.blocks[name].averages, []
    for a, g in zip(averages["A"], averages["G"], strict=True):
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
    diagonal = kfac.blocks["0"].averages["F"]
    assert_close(values["0"], (diagonal + 0.01).flatten().sort().values, **EXACT)
    units = torch.block_diag(*kfac.blocks["1"].averages["F"])
    expected = torch.linalg.eigvalsh(units + 0.01 * torch.eye(8))
    assert_close(values["1"], expected, **EXACT)


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_memory_usage_counts_every_byte(kind):
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact", damping_kind=kind)
    assert kfac.memory_usage() == 0
    observe(kfac, x)
    # A and G of each layer: 18² + 4², two groups of 19² + 2², 17² + 3².
    factors = (18**2 + 4**2) + 2 * (19**2 + 2**2) + (17**2 + 3**2)
    assert kfac.memory_usage() == 8 * factors
    set_gradients(model)
    kfac.precondition_()
    denominators = 18 * 4 + 2 * 19 * 2 + 17 * 3 if kind == "exact" else 0
    assert kfac.memory_usage() == 8 * (2 * factors + denominators)


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


def test_norm_ratio_is_not_kept_unasked():
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0)
    observe(kfac, x)
    set_gradients(model)
    kfac.precondition_()
    assert kfac.norm_ratio is None


# --- batches that are not finite ----------------------------------------------------------------

ROOTS = ["exact", "sketched(2)", "sketched(2, independent)", "sampled(2)", "top(1)"]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_batch_that_is_not_finite_changes_nothing(root, bad):
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.1, ema=0.3, fisher=root)
    observe(kfac, x)
    before = {k: v.clone() for k, v in kfac.state_dict().items()}
    x[2, 3] = bad
    with pytest.raises(NumericalError, match=r"not finite in layer\(s\) 0"):
        observe(kfac, x)
    after = kfac.state_dict()
    assert after.keys() == before.keys()
    for key, value in after.items():
        assert torch.equal(value, before[key]), key


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
        "The curvature of this batch is not finite in layer(s) 2. Nothing was changed. "
        "Check the inputs for extreme values."
    )


@pytest.mark.parametrize("weights", [[1.0, -1.0, 1.0, 1.0], [1.0, float("nan"), 1.0, 1.0]])
def test_weights_without_a_root_are_refused(weights):
    kfac = KFAC(mlp(), damping=0.1, ema=0.3)
    with pytest.raises(NumericalError):
        observe(kfac, torch.randn(4, 5), weights=torch.tensor(weights))
    assert all(not block.averages for block in kfac.blocks.values())


def test_a_factor_that_cannot_be_inverted_is_named():
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=1e-3, ema=1.0, fisher="exact")
    observe(kfac, x)
    kfac.blocks["2"].averages["G"].sub_(10 * torch.eye(3))
    set_gradients(model)
    with pytest.raises(NumericalError, match="The curvature of the outputs of layer '2' is not"):
        kfac.precondition_()
