"""The recorder: what it keeps, what is refused, and that no hook remains."""

from __future__ import annotations

import copy
import warnings

import pytest
import reference
import torch
from checks import assert_factors, average
from nets import batch_norm_net, cross_entropy_gradients, mlp, observe, set_gradients
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import EKFAC, KFAC, DenseFisher
from ocar.curvature.layers import make_layer
from ocar.curvature.recorder import Recorder, pull_back
from ocar.errors import ModelError


def make(model: nn.Module, **options: object) -> KFAC:
    return KFAC(model, **{"damping": 0.1, "ema": 1.0, "fisher": "exact", **options})


def count_hooks(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)


# --- the hooks ----------------------------------------------------------------------------------


def test_hooks_are_gone_after_the_context():
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    kfac = make(model)
    assert count_hooks(model) == 0
    with kfac.record():
        assert count_hooks(model) == 6  # the first recording also watches where a call starts
        model(x)
    assert count_hooks(model) == 0
    with kfac.record():
        assert count_hooks(model) == 3
        outputs = model(x)
    assert count_hooks(model) == 0
    kfac.update(outputs)
    assert count_hooks(model) == 0


def test_hooks_are_gone_after_an_error():
    model = mlp()
    kfac = make(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), kfac.record():
        model(torch.randn(4, 7))
    assert count_hooks(model) == 0
    observe(kfac, torch.randn(4, 5))


def test_forward_passes_outside_the_context_do_not_count():
    model, x = mlp(), torch.randn(4, 5)
    kfac = make(model)
    model(torch.randn(2, 5))
    with kfac.record():
        outputs = model(x)
    with torch.no_grad():
        model(torch.randn(3, 5))
    kfac.update(outputs)
    assert_factors(kfac, reference.kronecker_factors(model, x, ["0", "2"]))


def test_a_second_recording_replaces_the_first():
    model, x = mlp(), torch.randn(4, 5)
    kfac = make(model)
    with kfac.record():
        model(torch.randn(2, 5))
    observe(kfac, x)
    assert_factors(kfac, reference.kronecker_factors(model, x, ["0", "2"]))


def test_the_graph_is_freed_after_the_update():
    model, x = mlp(), torch.randn(4, 5)
    kfac = make(model)
    observe(kfac, x)
    assert not kfac.record().records
    with pytest.raises(ModelError) as caught:
        kfac.update(model(x))
    assert str(caught.value) == ("No forward pass was recorded. Call the model inside record().")


def test_the_loss_can_be_differentiated_after_the_update():
    model, x, y = batch_norm_net(), torch.randn(4, 2, 5, 5), torch.tensor([0, 1, 2, 1])
    twin = copy.deepcopy(model)
    outputs = observe(make(model), x)
    cross_entropy_gradients(outputs, y, model)
    cross_entropy_gradients(twin(x), y, twin)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(inplace=True), nn.LeakyReLU(0.1, inplace=True), nn.Hardtanh(inplace=True)],
    ids=lambda a: type(a).__name__,
)
def test_in_place_activations_do_no_harm(activation):
    plain = copy.deepcopy(activation)
    plain.inplace = False
    x = torch.randn(4, 5)
    model = nn.Sequential(nn.Linear(5, 4), activation, nn.Linear(4, 4), activation, nn.Linear(4, 3))
    twin = copy.deepcopy(model)
    twin[1], twin[3] = plain, plain
    kfac = make(model)
    observe(kfac, x)
    assert_factors(kfac, reference.kronecker_factors(twin, x, ["0", "2", "4"]))


def test_in_place_residual_sums_do_no_harm():
    class Residual(nn.Module):
        def __init__(self, *, inplace: bool) -> None:
            super().__init__()
            self.first, self.second, self.inplace = nn.Linear(3, 3), nn.Linear(3, 3), inplace

        def forward(self, x: Tensor) -> Tensor:
            out = self.first(x)
            if self.inplace:
                out += x
                return self.second(out.relu_())
            return self.second((out + x).relu())

    model, x = Residual(inplace=True), torch.randn(4, 3)
    twin = Residual(inplace=False)
    twin.load_state_dict(model.state_dict())
    kfac = make(model)
    observe(kfac, x)
    assert_factors(kfac, reference.kronecker_factors(twin, x, ["first", "second"]))


# --- what is refused ----------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(torch.tanh(self.body(x))))


def test_a_layer_that_is_called_twice_may_be_left_out():
    model, x = Twice(), torch.randn(4, 4)
    kfac = make(model, exclude=["body"])
    observe(kfac, x)
    plain = set_gradients(model)
    kfac.precondition_()
    assert torch.equal(model.body.weight.grad, plain["body.weight"])
    assert not torch.equal(model.head.weight.grad, plain["head.weight"])


def test_two_passes_in_one_recording_are_refused():
    model = mlp()
    kfac = make(model)
    with kfac.record():
        model(torch.randn(4, 5))
        outputs = model(torch.randn(4, 5))
    with pytest.raises(ModelError) as caught:
        kfac.update(outputs)
    assert str(caught.value) == (
        "Layer '0' was called 2 times in one recording, and the outputs depend on 1 of the calls. "
        "Record one forward pass, or leave the layer out with exclude=['0']."
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forward_passes_without_gradients_are_refused(mode):
    model = mlp()
    kfac = make(model)
    with pytest.raises(ModelError) as caught, mode(), kfac.record():
        model(torch.randn(4, 5))
    assert str(caught.value) == (
        "Layer '0' was called without gradients. "
        "Call the model outside torch.no_grad() and torch.inference_mode()."
    )
    assert count_hooks(model) == 0


def test_outputs_of_another_forward_pass_are_refused():
    model, x = mlp(), torch.randn(4, 5)
    kfac = make(model)
    with kfac.record():
        model(x)
    with pytest.raises(ModelError) as caught:
        kfac.update(model(x))
    assert str(caught.value) == (
        "The outputs do not come from the recorded forward pass. Give update() what the model "
        "returned inside record()."
    )


# --- backward passes that cannot be batched -----------------------------------------------------


class ItemInBackward(torch.autograd.Function):
    """tanh, with a backward pass that asks for a number: vmap cannot do that."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        out = torch.tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        scale = 1.0 if grad.abs().sum().item() >= 0 else 0.0
        return grad * (1 - out**2) * scale


class Stubborn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(ItemInBackward.apply(self.first(x)))


def test_columns_that_cannot_be_batched_are_pulled_back_one_by_one():
    model, x = Stubborn(), torch.randn(4, 5)
    kfac = make(model)
    with pytest.warns(UserWarning, match="cannot be batched; the columns of the Fisher are"):
        outputs = observe(kfac, x)
    twin = mlp()
    twin[0], twin[2] = model.first, model.second
    expected = reference.kronecker_factors(twin, x, ["0", "2"])
    assert_factors(kfac, {"first": expected["0"], "second": expected["2"]})
    outputs.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observe(kfac, x)  # no second warning


class Distances(nn.Module):
    """PyTorch batches the backward pass of the distances wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(3, 3)
        self.centres = nn.Buffer(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cdist(self.body(x), self.centres))


@pytest.mark.parametrize("kind", [EKFAC, DenseFisher])
def test_columns_that_are_batched_wrongly_are_pulled_back_one_by_one(kind):
    model, x = Distances(), torch.randn(4, 5)
    curvature = kind(model, damping=0.1, ema=1.0, fisher="exact(independent)")
    with pytest.warns(UserWarning, match="cannot be batched; .*: PyTorch computes wrong gradients"):
        observe(curvature, x)
    observe(curvature, x)  # no second warning
    if kind is DenseFisher:
        assert_close(curvature.average, reference.full_fisher(model, x), **EXACT)
        return
    for name in ("body", "head"):
        bases = [average(curvature, name, key)[0] for key in ("UG", "UA")]  # minus the identity
        u = torch.kron(*(own + torch.eye(len(own)) for own in bases))
        expected = (u.mT @ reference.layer_fisher(model, x, name) @ u).diagonal()
        assert_close(average(curvature, name, "S").flatten(), expected, **EXACT)


def test_gradients_that_are_rounded_are_not_taken_for_wrong_ones():
    model, x = batch_norm_net().bfloat16(), torch.randn(4, 2, 5, 5).bfloat16()
    curvature = make(model)
    observe(curvature, x)  # no warning, which would be an error
    assert curvature._recorder.pull.batched


def test_an_error_that_is_not_about_batching_is_not_taken_for_it():
    model, x = mlp(), torch.randn(4, 5)
    kfac = make(model)
    with kfac.record():
        outputs = model(x)
    outputs.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        kfac.update(outputs)
    observe(kfac, x)
    assert kfac._recorder.pull.batched


@pytest.mark.parametrize("batched", [True, False])
def test_pull_back_is_a_vector_jacobian_product(batched):
    model, x = mlp(), torch.randn(4, 5)
    named = {"first": model[0], "last": model[2]}
    recorder = Recorder({n: make_layer(n, m) for n, m in named.items()}, model)
    with recorder:
        outputs = model(x)
    assert torch.equal(recorder.records["first"][0].x, x)
    columns = torch.randn(3, 4, 3)
    recorder.pull.batched = batched
    gradients = recorder.pull_back(outputs, columns)
    hidden, jacobian = model[0](x), model[2].weight
    for c in range(3):
        expected = columns[c] @ jacobian * (1 - torch.tanh(hidden) ** 2)
        assert_close(gradients["first"][0][c], expected, **EXACT)
        assert_close(gradients["last"][0][c], columns[c], **EXACT)


@pytest.mark.parametrize("batched", [True, False])
def test_pull_back_to_tensors_leaves_out_what_is_not_reached(batched):
    used, unused = torch.randn(2, 3, requires_grad=True), torch.randn(2, requires_grad=True)
    columns = torch.randn(4, 2, 3)
    gradients = pull_back(2 * used, [used, unused], columns, batched=batched)
    assert_close(gradients[0], 2 * columns, **EXACT)
    assert gradients[1] is None
