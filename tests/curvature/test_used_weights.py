"""Weights that a call of a module does not show: inner padding, attention, positions, shared ones.

The oracle is the dense Fisher. E-KFAC in the basis of the start has its diagonal, without any
approximation, and so has the curvature of embeddings and positions. K-FAC has the whole block where
it is exact: one sample and one location.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import reference
import torch
from axes import InAxes
from checks import assert_factors, average, block_of
from nets import observe, set_gradients
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from used_weights import (
    CASES,
    IDS,
    Net,
    SamePadding,
    after,
    attention,
    flat_second,
    images,
    linear,
    made,
    positions,
    recurrent,
    sequences,
    tokens,
)

from ocar.curvature import EKFAC, KFAC
from ocar.curvature.layers import MatrixLayer
from ocar.errors import ModelError

OPTIONS = {"damping": 0.1, "ema": 1.0, "fisher": "exact"}


def with_curvature(kind: type, model: nn.Module, x: Tensor, **options: object) -> EKFAC | KFAC:
    """A curvature that has seen a batch; separate projections name their bias."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"No curvature for .*attend\.in_proj_bias \(parameter\)")
        warnings.filterwarnings("ignore", r"No curvature for .*first\.bias.*second\.bias")
        curvature = kind(model, **{**OPTIONS, **options})
    observe(curvature, x)
    return curvature


def diagonal(curvature: EKFAC, name: str) -> Tensor:
    """The diagonal of a layer's curvature, for weight and bias one after the other."""
    layer = curvature.layers[name]
    if not isinstance(layer, MatrixLayer):
        return average(curvature, name, "F").flatten()
    before = [p.grad for p in layer.parameters]
    for parameter in layer.parameters:
        parameter.grad = torch.zeros_like(parameter)
    layer.replace_gradient(average(curvature, name, "S"))
    found = torch.cat([p.grad.flatten() for p in layer.parameters])
    for parameter, grad in zip(layer.parameters, before, strict=True):
        parameter.grad = grad
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_diagonal_is_that_of_the_dense_fisher(case):
    model, x = made(case)
    curvature = with_curvature(InAxes, model, x, fisher="exact(independent)")
    assert not curvature._unseen
    for name, layer in curvature.layers.items():
        fisher = reference.full_fisher(model, x, parameters=layer.parameters)
        assert fisher.diagonal().count_nonzero() > 0
        assert_close(diagonal(curvature, name), fisher.diagonal(), **EXACT)


@pytest.mark.parametrize("case", CASES)
def test_all_weights_have_curvature(case):
    model, x = made(case)
    curvature = with_curvature(KFAC, model, x)
    covered = {id(p) for layer in curvature.layers.values() for p in layer.parameters}
    norms = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    weights = {id(p) for p in model.parameters() if p.dim() > 1} - norms
    assert weights <= covered
    before = set_gradients(model)
    curvature.precondition_()
    changed = {id(p) for n, p in model.named_parameters() if not torch.equal(p.grad, before[n])}
    assert changed == covered


@pytest.mark.parametrize("case", CASES)
def test_output_gradients_times_inputs_are_the_gradient(case):
    model, x = made(case)
    curvature = with_curvature(KFAC, model, x)
    with curvature.record():
        outputs = model(x)
    columns = torch.randn(1, *outputs.shape)
    seen = curvature._recorded(len(x), curvature._recorder.pull_back(outputs, columns))
    model.zero_grad()
    (outputs * columns[0]).sum().backward()
    for name, layer in curvature.layers.items():
        if isinstance(layer, MatrixLayer):
            a, g = seen[name].inputs(layer), seen[name].gradients(layer)[0]
            assert_close(torch.einsum("ngol,ngil->goi", g, a), layer.gradient(), **EXACT)


def test_a_network_that_is_written_out_returns_the_same():
    model = recurrent(nn.LSTM, num_layers=2, bidirectional=True, outputs=8)
    x, kfac = sequences(), KFAC(model, **OPTIONS)
    with kfac.record():
        outputs = model(x)
    assert_close(outputs, model(x), **EXACT)


def test_packed_sequences_have_no_curvature():
    def run(m: Net, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [3, 3, 2, 1], batch_first=True)
        return m.head(m.rnn(packed)[1][0])

    model = Net(run, rnn=nn.GRU(4, 4, batch_first=True), head=nn.Linear(4, 3))
    kfac = KFAC(model, **OPTIONS)
    with pytest.warns(UserWarning, match=r"No curvature for 2 layer.*rnn\.weight_ih_l0"):
        observe(kfac, sequences())


# --- K-FAC's whole blocks -----------------------------------------------------------------------


def one_datum(case: str) -> tuple[nn.Module, Tensor, list[str]]:
    """Models of which the named layers see one sample at one location."""
    if case == "inner padding":
        return after(SamePadding(2, 3, (6, 5)), 3), torch.randn(1, 2, 3, 4), ["0", "3"]
    if case == "transposed":  # all outputs but one are cut off
        layer = nn.ConvTranspose2d(2, 3, 3, padding=1)
        return after(layer, 3), torch.randn(1, 2, 1, 1), ["0", "3"]
    model = attention(add_zero_attn=True)  # a second key: queries and keys matter
    return model, torch.randn(1, 1, 4), ["attend.in_proj", "attend.out_proj", "head"]


@pytest.mark.parametrize("case", ["inner padding", "transposed", "attention"])
def test_a_single_datum_has_the_block_of_the_dense_fisher(case):
    model, x, names = one_datum(case)
    kfac = with_curvature(KFAC, model, x)
    for name in names:
        layer = kfac.layers[name]
        fisher = reference.full_fisher(model, x, parameters=layer.parameters)
        numbers = torch.arange(float(len(fisher))).split([p.numel() for p in layer.parameters])
        for parameter, own in zip(layer.parameters, numbers, strict=True):
            parameter.grad = own.view_as(parameter).clone()
        order = layer.gradient().flatten().long()  # where the matrix has each parameter
        (a,), (g,) = average(kfac, name, "A"), average(kfac, name, "G")
        assert_close(torch.kron(g, a), fisher[order][:, order], **EXACT)


def padded_twin(model: nn.Module) -> nn.Module:
    """The same with a padding of its own module."""
    conv = nn.Conv2d(2, 3, 3, stride=2)
    conv.load_state_dict(model[0].state_dict())
    return nn.Sequential(nn.ZeroPad2d((0, 1, 1, 2)), conv, *model[1:])


class LinearAttention(nn.Module):
    """MultiheadAttention with two heads, by linear layers."""

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.qkv.weight, self.qkv.bias = layer.in_proj_weight, layer.in_proj_bias
        self.out.weight, self.out.bias = layer.out_proj.weight, layer.out_proj.bias

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.mT / 2**0.5, -1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_the_factors_of_an_inner_padding_are_those_of_an_outer_one(sharing):
    model, x = made("inner padding")
    kfac = with_curvature(KFAC, model, x, sharing=sharing)
    expected = reference.kronecker_factors(padded_twin(model), x, ["1", "4"], sharing=sharing)
    assert_factors(kfac, {"0": expected["1"], "3": expected["4"]})


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("case", ["attention", "attention, time first"])
def test_the_factors_of_attention_are_those_of_linear_layers(case, sharing):
    model, x = made(case)
    kfac = with_curvature(KFAC, model, x, sharing=sharing)
    twin = Net(
        lambda m, x: m.head(m.attend(x).mean(1)),
        attend=LinearAttention(model.attend),
        head=model.head,
    )
    assert_close(twin(x), model(x), **EXACT)
    names = ["attend.qkv", "attend.out", "head"]
    expected = reference.kronecker_factors(twin, x, names, sharing=sharing)
    renamed = dict(zip(["attend.in_proj", "attend.out_proj", "head"], names, strict=True))
    assert_factors(kfac, {own: expected[other] for own, other in renamed.items()})
    assert block_of(kfac, "attend.in_proj") is block_of(kfac, "head")


# --- what has no curvature ----------------------------------------------------------------------


class Standardized(nn.Conv2d):
    """Convolves with a function of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Decayed(nn.Linear):
    """Uses its weight, and once more in another way."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.weight.square().sum()


class BiasApart(nn.Linear):
    """Adds a multiple of its bias."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + 2 * self.bias


def also_multiplied(m: Net, x: Tensor) -> Tensor:
    place = m.place(torch.arange(3))
    return tokens(m, x, place) + m.head(m.embed(x) * place)[:, 0]


def also(use: Callable[[nn.Linear, Tensor], Tensor]) -> nn.Module:
    """A linear layer whose parameters are used in another way too."""

    def run(m: Net, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.body(x))
        return m.head(hidden + use(m.body, hidden)).mean(1)

    return linear(run)


def free(m: Net, x: Tensor) -> Tensor:
    """A layer on rows that are not of samples."""
    queries = m.body(m.queries)
    return m.head((torch.softmax(x @ queries.T, -1) @ queries).mean(1))


LOST = {
    "matmul": (lambda: also(lambda body, x: x @ body.weight.T), sequences, "body (Linear)"),
    "einsum": (
        lambda: also(lambda body, x: torch.einsum("nti,oi->nto", x, body.weight)),
        sequences,
        "body (Linear)",
    ),
    "rows": (
        lambda: also(lambda body, x: F.linear(x[..., :2], body.weight[:, :2])),
        sequences,
        "body (Linear)",
    ),
    "penalty": (lambda: also(lambda body, x: body.weight.square().sum()), sequences, "body (Lin"),
    "bias": (lambda: also(lambda body, x: x + body.bias), sequences, "body (Linear)"),
    "rows that are not of samples": (
        lambda: linear(free, queries=nn.Parameter(torch.randn(8, 4), requires_grad=False)),
        sequences,
        "body (Linear)",
    ),
    "a vector": (
        lambda: linear(
            lambda m, x: m.head(torch.tanh(x * m.body(m.code))).mean(1),
            code=nn.Parameter(torch.randn(4), requires_grad=False),
        ),
        sequences,
        "body (Linear)",
    ),
    "a function of the weight": (lambda: after(Standardized(2, 3, 3), 18), images, "0 (Stand"),
    "one more use": (lambda: after(Decayed(4, 3), 9), sequences, "0 (Decayed)"),
    "bias apart": (lambda: after(BiasApart(4, 3), 9), sequences, "0 (BiasApart)"),
    "a scale": (
        lambda: positions(
            lambda m, x: tokens(m, x, m.embed(x) * m.scale),
            scale=nn.Parameter(torch.randn(1, 3, 4)),
        ),
        lambda: IDS,
        "scale (parameter)",
    ),
    "positions that are multiplied": (
        lambda: positions(
            lambda m, x: m.head(m.body(m.embed(x) * m.place(torch.arange(3))).mean(1)),
            place=nn.Embedding(9, 4),
        ),
        lambda: IDS,
        "place (Embedding)",
    ),
    "positions that are also multiplied": (
        lambda: positions(also_multiplied, place=nn.Embedding(4, 4)),
        lambda: IDS,
        "place (Embedding)",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_a_weight_that_is_used_in_another_way_keeps_its_gradient_and_is_named(case):
    make, inputs, named = LOST[case]
    model, x = make(), inputs()
    kfac = KFAC(model, **OPTIONS)
    with pytest.warns(UserWarning, match="No curvature for 1 layer") as caught:
        observe(kfac, x)
    assert named in str(caught[0].message)
    name = named.partition(" ")[0]
    assert kfac._unseen == {name}
    plain = set_gradients(model)
    kfac.precondition_()
    for parameter in kfac.layers[name].parameters:
        assert any(torch.equal(parameter.grad, grad) for grad in plain.values())


def test_a_use_in_train_mode_is_seen_after_a_trial_in_eval_mode():
    def run(m: Net, x: Tensor) -> Tensor:
        hidden = m.body(x)
        return m.head(torch.tanh(hidden + x @ m.body.weight.T if m.training else hidden)).mean(1)

    model, x = linear(run), sequences()
    kfac = KFAC(model.eval(), **OPTIONS)
    kfac.try_recording(x)
    model.train()
    with pytest.warns(UserWarning, match=r"No curvature for 1 layer.*: body \(Linear\)\."):
        observe(kfac, x)
    assert kfac._unseen == {"body"}


def test_rows_where_two_samples_are_by_chance_are_not_taken_for_samples():
    """Thirty-five nodes of one graph: a sample asks for one, and its row may be in its place."""
    model = linear(
        lambda m, x: m.head(torch.tanh(m.body(m.nodes))[x]),
        nodes=nn.Parameter(torch.randn(35, 4), requires_grad=False),
    )
    kfac = KFAC(model, **OPTIONS)
    with pytest.warns(UserWarning, match=r"No curvature for 1 layer.*: body \(Linear\)\."):
        observe(kfac, torch.tensor([0, 5, 1, 1, 1, 1, 1]))
    assert kfac._unseen == {"body"}


def test_relative_positions_are_not_taken_for_samples_in_a_batch_of_their_size():
    model = linear(
        lambda m, x: m.head((m.bias(m.places)[..., 0].softmax(-1) @ torch.tanh(m.body(x))).mean(1)),
        bias=nn.Embedding(7, 1),
        places=nn.Parameter(torch.arange(16).view(4, 4) % 7, requires_grad=False),
    )
    kfac = KFAC(model, **OPTIONS)
    with pytest.warns(UserWarning, match=r"No curvature for 1 layer.*: bias \(Embedding\)\."):
        observe(kfac, torch.randn(3, 4, 4))
    observe(kfac, torch.randn(4, 4, 4))
    assert kfac._unseen == {"bias"}


def test_layers_of_different_kinds_that_share_a_weight_are_refused():
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.ConvTranspose1d(4, 4, 1), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    with pytest.raises(
        ModelError, match=r"Layers '0' and '1' share a parameter\..*exclude=\['1'\]"
    ):
        KFAC(model, **OPTIONS)


def test_recorded_functions_see_the_same_after_an_error():
    model, x = made("attention")
    kfac = KFAC(model, **OPTIONS)
    with pytest.raises(AssertionError, match="embedding dimension"), kfac.record():
        model(torch.randn(4, 3, 5))
    observe(kfac, x)
    assert not kfac._unseen


def test_attention_predicts_as_before_while_it_is_recorded():
    """Weights of attention, and the outputs of its fast path without gradients."""
    layer, x = nn.MultiheadAttention(4, 2, batch_first=True).eval(), torch.randn(4, 3, 4)
    model = attention()
    model.attend = layer
    with torch.no_grad():
        fast, weights = layer(x, x, x)
    with KFAC(model, **OPTIONS).record():
        outputs, recorded = layer(x, x, x)
        assert layer(x, x, x, need_weights=False)[1] is None
    assert_close(outputs, fast, **EXACT)
    assert_close(recorded, weights, **EXACT)


def test_a_model_whose_only_weight_is_used_in_another_way_is_refused():
    kfac = KFAC(Net(lambda m, x: m.head(x) + x @ m.head.weight.T, head=nn.Linear(4, 3)), **OPTIONS)
    with pytest.raises(ModelError, match=r"^No layer has curvature: the weights of head are used"):
        observe(kfac, torch.randn(5, 4))


@pytest.mark.parametrize("case", ["called twice", "attention", "broadcast positions", "positions"])
def test_samples_are_looked_for_once(case, monkeypatch):
    model, x = made(case)
    kfac = KFAC(model, **OPTIONS)
    found = []
    look = kfac._samples.find
    monkeypatch.setattr(kfac._samples, "find", lambda *a, **k: (found.append(1), look(*a, **k)))
    for _ in range(3):
        observe(kfac, x)
    assert len(found) == 1


def test_samples_that_were_found_are_found_in_batches_of_other_sizes():
    """The rows of a time are one after another, in each batch."""
    model = linear(flat_second)
    first = torch.randn(4, 3, 4)
    curvature = with_curvature(InAxes, model, first, fisher="exact(independent)")
    model.head.reset_parameters()
    x = torch.randn(2, 6, 4)
    observe(curvature, x)
    fisher = reference.full_fisher(model, x, parameters=curvature.layers["body"].parameters)
    assert_close(diagonal(curvature, "body"), fisher.diagonal(), **EXACT)


def test_samples_are_found_although_batch_norm_couples_them():
    model = linear(flat_second, norm=nn.BatchNorm1d(3))
    model.run = lambda m, x: m.norm(flat_second(m, x))
    kfac = KFAC(model, **OPTIONS, sharing="reduce")
    x = torch.randn(6, 3, 4)
    observe(kfac, x)
    rows = torch.cat([x, torch.ones(6, 3, 1)], -1).mean(1)
    assert_close(average(kfac, "body", "A")[0], rows.T @ rows / 6, **EXACT)
