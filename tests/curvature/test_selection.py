"""Parameters that are excluded or not included keep their gradient to the bit; and the table."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from nets import batch_norm_net, observe, set_gradients
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

import ocar
from ocar.curvature import EKFAC, FOOF, KFAC, Curvature, DenseFisher
from ocar.errors import ConfigError, ModelError

KINDS = [KFAC, EKFAC, FOOF, DenseFisher]


class Encoder(nn.Module):
    """Tokens, attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(1))


IDS = torch.tensor([[0, 1, 2], [2, 2, 4], [3, 0, 0], [1, 4, 3]])


def changed(curvature: Curvature, x: Tensor) -> set[str]:
    """The names of the parameters whose gradient is preconditioned."""
    observe(curvature, x)
    plain = set_gradients(curvature.model)
    curvature.precondition_()
    named = curvature.model.named_parameters()
    return {n for n, p in named if n in plain and not torch.equal(p.grad, plain[n])}


def make(kind: type[Curvature], model: nn.Module, **options: object) -> Curvature:
    return kind(model, damping=0.1, ema=1.0, fisher="exact", **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exclude": ["0"]}, {"3.weight", "3.bias", "7.weight", "7.bias"}),
        ({"exclude": ["0", "3.bias"]}, {"3.weight", "7.weight", "7.bias"}),
        ({"exclude": ["*.bias"]}, {"0.weight", "3.weight", "7.weight"}),
        ({"exclude": [nn.Conv2d]}, {"7.weight", "7.bias"}),
        ({"include": ["Linear"]}, {"7.weight", "7.bias"}),
        ({"include": ("3", "7.*"), "exclude": ("3.bias",)}, {"3.weight", "7.weight", "7.bias"}),
        ({"include": [nn.Conv2d], "exclude": [nn.Module]}, None),
        ({"include": ["[07]"]}, {"0.weight", "7.weight", "7.bias"}),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, set) else str(given),
)
def test_what_is_left_out_keeps_its_gradient(kind, options, expected):
    model, x = batch_norm_net().eval(), torch.randn(4, 2, 5, 5)
    if expected is None:
        with pytest.raises(ConfigError, match="matches 'Module'"):
            make(kind, model, **options)
        return
    found = changed(make(kind, model, **options), x)
    norms = {f"{index}.{key}" for index in (1, 4) for key in ("weight", "bias")}
    assert found - norms == expected  # the full Fisher has norm layers, too
    assert found & norms == set() or kind is DenseFisher


def test_a_bias_that_is_left_out_leaves_the_block_of_the_weight():
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4)
    results = []
    for options in ({"exclude": ["0.bias"]}, {}):
        model[0].bias.requires_grad_(bool(options))
        kfac = make(KFAC, model, **options)
        changed(kfac, x)
        results.append(model[0].weight.grad.clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("left_out", [["0.bias"], ["*.bias"]], ids=str)
@pytest.mark.parametrize("samples", [2, 30])
def test_a_bias_that_is_left_out_is_not_in_the_few_rows_of_a_batch(left_out, samples):
    """Two rows are fewer than the outputs: the gradient of the weight is taken as a product."""
    results = []
    for few in (True, False):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 9)), torch.randn(30, 4)
        kfac = make(KFAC, model, exclude=left_out)
        observe(kfac, x)
        with kfac.follow() if few else nullcontext():
            outputs = model(x[:samples])
        outputs.square().sum().backward()
        assert (kfac.blocks[0].rows.rows("0") is not None) == (few and samples == 2)
        kfac.precondition_()
        results.append([p.grad.clone() for p in model.parameters()])
    assert_close(*results, **EXACT)


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        (["blocks.0"], {"blocks.0."}),
        (["*.self_attn"], {"blocks.0.self_attn", "blocks.1.self_attn"}),
        ([nn.MultiheadAttention], {"blocks.0.self_attn", "blocks.1.self_attn"}),
        (["*in_proj*"], {"blocks.0.self_attn.in_proj", "blocks.1.self_attn.in_proj"}),
        ([nn.Embedding, "head"], {"embed", "head"}),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, set) else str(given),
)
def test_modules_of_any_depth_are_matched(patterns, left_out):
    model = Encoder()
    kfac = make(KFAC, model, exclude=patterns)
    covered = [name for name, _ in model.named_parameters() if "norm" not in name]
    expected = {name for name in covered if not name.startswith(tuple(left_out))}
    assert changed(kfac, IDS) == expected == set(kfac.covered())


@pytest.mark.parametrize("option", ["exclude", "include"])
def test_patterns_that_match_nothing_are_named(option):
    with pytest.raises(ConfigError) as caught:
        make(KFAC, Encoder(), **{option: ["embed", "layer*", nn.Conv2d]})
    assert str(caught.value) == (
        f"Invalid {option}: no parameter, module or class of modules of Encoder matches 'layer*', "
        "'Conv2d'. Its modules: embed, blocks, head."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_left_is_refused(kind):
    with pytest.raises(ModelError, match="or exclude and include leave none"):
        make(kind, nn.Sequential(nn.Linear(4, 3)), exclude=["*"])


def test_a_learner_takes_both_and_is_saved_with_them(tmp_path):
    learner = ocar.OCAR(
        Encoder().float(), memory=20, exclude=[nn.Embedding], include=["blocks.1", "head"]
    )
    learner.save(tmp_path / "file")
    again = ocar.load(tmp_path / "file", Encoder().float())
    for one in (learner, again):
        settings = one.transform_settings
        assert (settings.exclude, settings.include) == (("Embedding",), ("blocks.1", "head"))
        assert all(name.startswith(("blocks.1", "head")) for name in one.transform.curvature.layers)


# --- the table ----------------------------------------------------------------------------------


def test_the_table_says_what_has_which_curvature():
    model = Encoder()
    kfac = make(KFAC, model)
    rows = [line.split() for line in kfac.table().splitlines()]
    assert rows[0] == ["curvature", "numbers", "share", "parameters"]
    counts = {"Kronecker": 2 * (12 * 5 + 4 * 5 + 5 * 5 + 4 * 6) + 3 * 5, "diagonal": 20}
    counts["none,"] = 2 * 2 * 8
    total = sum(p.numel() for p in model.parameters())
    assert sum(counts.values()) == total
    for row in rows[1:]:
        numbers = [word for word in row if word.isdigit()]
        assert int(numbers[0]) == counts[row[0]]
        assert f"{100 * counts[row[0]] / total:.1f}" in row
    assert (
        "blocks.0.norm1.weight, blocks.0.norm1.bias, blocks.0.norm2.weight, … (8)" in kfac.table()
    )


def test_the_table_knows_after_a_forward_pass_what_was_not_used():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].forward = lambda x: x @ model[0].weight.T
    kfac = make(KFAC, model)
    assert set(kfac.covered()) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    with pytest.warns(UserWarning, match=r"No curvature for 1 layer\(s\).*: 0 \(Linear\)"):
        observe(kfac, torch.randn(5, 4))
    assert set(kfac.covered()) == {"1.weight", "1.bias"}


def test_a_learner_shows_its_table():
    learner = ocar.OCAR(nn.Sequential(nn.Linear(4, 3)), memory=10)
    assert learner.curvature_table().splitlines()[1].startswith("Kronecker factors")
    learner = ocar.ER(nn.Sequential(nn.Linear(4, 3)), lr=0.1, memory=10)
    assert learner.curvature_table().splitlines()[1].startswith("none, plain gradient       15")


def freeze(model: nn.Sequential) -> None:
    model[3].requires_grad_(False)


def replace_head(model: nn.Sequential) -> None:
    model[7] = nn.Linear(16, 5)


def append(model: nn.Sequential) -> None:
    model.append(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (freeze, "3.bias, 3.weight"),
        (replace_head, "7.bias, 7.weight"),
        (append, "8.bias, 8.weight"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_whose_layers_change_is_refused_before_anything_happens(kind, change, names):
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    curvature = make(kind, model)
    observe(curvature, x)
    before = [tensor.clone() for tensor in curvature.tensors()]
    change(model)
    plain = set_gradients(model)
    with curvature.record():
        outputs = model(x)
    message = (
        f"The layer or requires_grad of {names} has changed since {kind.__name__} was made. "
        "Set it back, or make another of the model as it is now."
    )
    for act in (lambda: curvature.update(outputs), curvature.precondition_, curvature.state_dict):
        with pytest.raises(ModelError) as caught:
            act()
        assert str(caught.value) == message
    assert all(torch.equal(p.grad, plain[n]) for n, p in model.named_parameters() if n in plain)
    assert all(map(torch.equal, curvature.tensors(), before))


def test_weights_that_are_assigned_are_those_of_the_same_layers() -> None:
    """``load_state_dict(assign=True)`` makes new parameters."""
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    one, other = make(KFAC, copy.deepcopy(model)), make(KFAC, model)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert changed(one, x) == changed(other, x)
