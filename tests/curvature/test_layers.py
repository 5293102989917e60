"""Layers as the curvature sees them, against loops over samples, groups and locations."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import convolutions
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature.blocks import Seen
from ocar.curvature.kfac import KroneckerBlocks
from ocar.curvature.layers import (
    EmbeddingLayer,
    MatrixLayer,
    NormLayer,
    TransposedLayer,
    make_layer,
)
from ocar.errors import ModelError

SHARING = st.sampled_from(["expand", "reduce"])


def locations_last(a: Tensor) -> Tensor:
    """From the reference's ``(n, groups, L, d)`` to the package's ``(n, groups, d, L)``."""
    return a.mT


@settings(max_examples=30, deadline=None, derandomize=True)
@given(convolutions())
def test_the_reference_patches_reproduce_the_convolution(case):
    """The oracle itself: kernel · patch + bias is what the layer computes."""
    conv, x = case
    kernels = conv.weight.reshape(conv.groups, -1, conv.weight[0].numel())
    out = torch.einsum("god,ngld->ngol", kernels, reference.patches(conv, x))
    out = out.reshape(x.shape[0], conv.out_channels, -1)
    if conv.bias is not None:
        out = out + conv.bias.view(1, -1, 1)
    assert_close(out, conv(x).flatten(2), **EXACT)


# --- linear layers and convolutions -------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions())
def test_the_inputs_of_a_convolution_are_its_patches(case):
    conv, x = case
    layer = MatrixLayer("conv", conv)
    expected = reference.input_locations(conv, x, bias=conv.bias is not None)
    assert_close(layer.inputs(x), locations_last(expected), **EXACT)
    assert expected.shape[1::2] == (layer.groups, layer.d_in)


@pytest.mark.parametrize("stride", [1, 2, (2, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_one_by_one_convolution_sees_pixels(stride, groups):
    conv = nn.Conv2d(4, 2, 1, stride=stride, groups=groups)
    x = torch.randn(2, 4, 5, 6)
    expected = reference.input_locations(conv, x, bias=True)
    assert_close(MatrixLayer("conv", conv).inputs(x), locations_last(expected), **EXACT)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(convolutions(), st.integers(1, 3))
def test_the_gradients_of_a_convolution_are_split_by_group(case, columns):
    conv, x = case
    g = torch.randn(columns, *conv(x).shape)
    layer = MatrixLayer("conv", conv)
    expected = torch.stack([reference.gradient_locations(conv, one) for one in g])
    assert_close(layer.gradients(g), locations_last(expected), **EXACT)
    assert layer.gradients(g).shape[2:4] == (layer.groups, layer.d_out)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(shape=st.lists(st.integers(1, 3), min_size=2, max_size=4), columns=st.integers(1, 2))
def test_linear_layers_see_their_leading_dimensions_as_locations(shape, columns):
    x, g = torch.randn(*shape), torch.randn(columns, *shape)
    for bias in (False, True):
        linear = nn.Linear(shape[-1], shape[-1], bias=bias)
        layer = MatrixLayer("linear", linear)
        expected = reference.input_locations(linear, x, bias=bias)
        assert_close(layer.inputs(x), locations_last(expected), **EXACT)
        expected = torch.stack([reference.gradient_locations(linear, one) for one in g])
        assert_close(layer.gradients(g), locations_last(expected), **EXACT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 3),
    locations=st.integers(1, 6),
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 4),
    columns=st.integers(1, 3),
    sharing=SHARING,
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_factors_are_sums_of_outer_products(
    n, locations, inputs, outputs, columns, sharing, weighted, seed
):
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=False)
    blocks = KroneckerBlocks({"layer": MatrixLayer("layer", linear)}, sharing=sharing)
    x, g = torch.randn(n, locations, inputs), torch.randn(columns, n, locations, outputs)
    weights = torch.rand(n) + 0.1 if weighted else None
    weights = None if weights is None else weights / weights.mean()
    seen = {"layer": Seen(x, g, weights)}
    blocks.estimate_inputs(seen)
    blocks.estimate(seen)
    assert_close(
        blocks.buffer.estimate("layer.A"),
        reference.input_factor(x.unsqueeze(1), sharing=sharing, weights=weights),
        **EXACT,
    )
    assert_close(
        blocks.buffer.estimate("layer.G"),
        reference.gradient_factor(list(g.unsqueeze(2)), sharing=sharing),
        **EXACT,
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_gradient_survives_the_way_to_a_matrix_and_back(groups, bias, last):
    conv = nn.Conv2d(4, 6, (2, 3), groups=groups, bias=bias)
    conv = conv.to(memory_format=torch.channels_last) if last else conv
    layer = MatrixLayer("conv", conv)
    assert not layer.has_gradient
    for parameter in conv.parameters():
        parameter.grad = torch.empty_like(parameter).normal_()
    assert layer.has_gradient
    before = [parameter.grad.clone() for parameter in conv.parameters()]
    matrix = layer.gradient()
    assert matrix.shape == (groups, 6 // groups, 4 // groups * 6 + int(bias))
    if not last:
        own = conv.bias.grad if bias else None
        assert_close(matrix, reference.as_matrix(conv, conv.weight.grad, own), **EXACT)
    layer.replace_gradient(2 * matrix)
    for parameter, gradient in zip(conv.parameters(), before, strict=True):
        assert_close(parameter.grad, 2 * gradient, **EXACT)
        assert parameter.grad.stride() == parameter.stride()


@pytest.mark.parametrize("last", [False, True])
def test_the_gradient_matrix_is_gradients_times_patches(last):
    """Layout of the matrix and of the inputs agree: Σ g aᵀ is the gradient of the layer."""
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    conv = conv.to(memory_format=torch.channels_last) if last else conv
    layer, x = MatrixLayer("conv", conv), torch.randn(3, 4, 5, 5)
    out = conv(x)
    seed = torch.randn(out.shape)
    out.backward(seed)
    a, g = layer.inputs(x), layer.gradients(seed[None])[0]
    assert_close(torch.einsum("ngol,ngil->goi", g, a), layer.gradient(), **EXACT)


def test_a_frozen_bias_is_not_part_of_the_matrix():
    linear = nn.Linear(3, 2)
    linear.bias.requires_grad_(False)
    layer = MatrixLayer("linear", linear)
    assert (layer.d_in, layer.has_bias) == (3, False)
    assert layer.shapes() == {"A": (1, 3, 3), "G": (1, 2, 2)}
    assert layer.parameters == [linear.weight]


def test_rows_that_are_not_samples_are_refused():
    layer = MatrixLayer("conv", nn.Conv2d(1, 2, 3))
    x = torch.randn(5, 1, 5, 5)
    with pytest.raises(ModelError) as caught:
        layer.by_sample(x, x.unsqueeze(0), 2)
    assert str(caught.value) == (
        "Layer 'conv' saw 5 rows for 2 samples, of shape (5, 1, 5, 5). Its curvature needs as many "
        "rows for each sample; leave it out with exclude=['conv']."
    )
    linear = MatrixLayer("linear", nn.Linear(5, 2))
    x, g = linear.by_sample(torch.randn(6, 5), torch.randn(4, 6, 2), 2)
    assert x.shape == (2, 3, 5)
    assert g.shape == (4, 2, 3, 2)


def test_half_precision_becomes_single():
    layer = MatrixLayer("linear", nn.Linear(5, 2))
    x, g = layer.by_sample(torch.randn(2, 5).half(), torch.randn(1, 2, 2).bfloat16(), 2)
    assert x.dtype == g.dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(2, 2), MatrixLayer),
        (nn.Conv1d(2, 2, 1), MatrixLayer),
        (nn.Conv2d(2, 2, 1), MatrixLayer),
        (nn.LayerNorm(2), NormLayer),
        (nn.BatchNorm3d(2), NormLayer),
        (nn.Embedding(2, 2), EmbeddingLayer),
        (nn.Embedding(2, 2, sparse=True), None),
        (nn.Conv3d(2, 2, 1), None),
        (nn.ConvTranspose2d(2, 2, 1), TransposedLayer),
        (nn.LayerNorm(2, elementwise_affine=False), None),
        (nn.ReLU(), None),
        (nn.Linear(2, 2).requires_grad_(False), None),
    ],
    ids=repr,
)
def test_which_modules_have_a_layer(module, kind):
    layer = make_layer("name", module)
    assert layer is None if kind is None else type(layer) is kind


# --- normalisation layers -----------------------------------------------------------------------

NORMS = {
    "batch1d": (lambda: nn.BatchNorm1d(4), (5, 4)),
    "batch1d-sequence": (lambda: nn.BatchNorm1d(4), (3, 4, 3)),
    "batch2d": (lambda: nn.BatchNorm2d(4), (3, 4, 2, 3)),
    "batch3d": (lambda: nn.BatchNorm3d(2), (3, 2, 2, 1, 2)),
    "batch-no-statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 2, 2)),
    "layer": (lambda: nn.LayerNorm(4), (3, 4)),
    "layer-tokens": (lambda: nn.LayerNorm(4), (3, 2, 3, 4)),
    "layer-two-dims": (lambda: nn.LayerNorm((2, 4)), (3, 2, 4)),
    "group": (lambda: nn.GroupNorm(2, 4), (3, 4)),
    "group2d": (lambda: nn.GroupNorm(2, 4), (3, 4, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", NORMS)
def test_norm_scores_are_the_gradients_of_scale_and_shift(case, training):
    """For each column and sample: the gradient through the outputs of that sample only."""
    make, shape = NORMS[case]
    layer = make().train(training)
    nn.init.normal_(layer.weight)
    if getattr(layer, "running_mean", None) is not None:
        nn.init.normal_(layer.running_mean)
        nn.init.uniform_(layer.running_var, 0.5, 2.0)
    x, g = torch.randn(*shape), torch.randn(2, *shape)
    scores = NormLayer("norm", layer).scores(x, g)
    assert scores.shape == (2, shape[0], layer.weight.numel(), 2)
    scale, shift = scores.unbind(-1)
    for c in range(2):
        for i in range(shape[0]):
            through = (layer(x)[i] * g[c, i]).sum()
            expected = torch.autograd.grad(through, [layer.weight, layer.bias])
            assert_close(scale[c, i], expected[0].flatten(), **EXACT)
            assert_close(shift[c, i], expected[1].flatten(), **EXACT)


# --- embeddings ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 3),
    tokens=st.integers(1, 5),
    rows=st.integers(1, 4),
    columns=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_embedding_diagonal_sums_repeated_tokens_before_squaring(n, tokens, rows, columns, seed):
    torch.manual_seed(seed)
    indices = torch.randint(rows, (n, tokens))
    g = torch.randn(columns, n, tokens, 2)
    expected = torch.zeros(rows, 2)
    for c in range(columns):
        for i in range(n):
            score = torch.zeros(rows, 2)
            for t in range(tokens):
                score[indices[i, t]] += g[c, i, t]
            expected += score**2 / n
    layer = EmbeddingLayer("embed", nn.Embedding(rows, 2))
    assert_close(layer.diagonal(indices, g), expected, **EXACT)
