"""Layer statistics, as pure functions, against loops over samples, groups and locations."""

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

from ocar.curvature import factors

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


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions(), st.booleans())
def test_conv_inputs_are_the_patches(case, bias):
    conv, x = case
    expected = reference.input_locations(conv, x, bias=bias)
    assert_close(factors.conv_inputs(x, conv, bias=bias), locations_last(expected), **EXACT)


@pytest.mark.parametrize("stride", [1, 2, (2, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_one_by_one_convolution_sees_pixels(stride, groups):
    conv = nn.Conv2d(4, 2, 1, stride=stride, groups=groups)
    x = torch.randn(2, 4, 5, 6)
    expected = reference.input_locations(conv, x, bias=True)
    assert_close(factors.conv_inputs(x, conv, bias=True), locations_last(expected), **EXACT)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(convolutions(), st.integers(1, 3))
def test_conv_gradients_are_split_by_group(case, columns):
    conv, x = case
    g = torch.randn(columns, *conv(x).shape)
    expected = torch.stack([reference.gradient_locations(conv, one) for one in g])
    assert_close(factors.conv_gradients(g, conv), locations_last(expected), **EXACT)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(shape=st.lists(st.integers(1, 3), min_size=2, max_size=4), columns=st.integers(1, 2))
def test_linear_layers_see_their_leading_dimensions_as_locations(shape, columns):
    linear = nn.Linear(shape[-1], 2)
    x, g = torch.randn(*shape), torch.randn(columns, *shape)
    for bias in (False, True):
        expected = reference.input_locations(linear, x, bias=bias)
        assert_close(factors.linear_inputs(x, bias=bias), locations_last(expected), **EXACT)
    expected = torch.stack([reference.gradient_locations(linear, one) for one in g])
    assert_close(factors.linear_gradients(g), locations_last(expected), **EXACT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 3),
    groups=st.integers(1, 2),
    d=st.integers(1, 4),
    locations=st.integers(1, 6),
    columns=st.integers(1, 3),
    sharing=SHARING,
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_factors_are_sums_of_outer_products(
    n, groups, d, locations, columns, sharing, weighted, seed
):
    torch.manual_seed(seed)
    a, g = torch.randn(n, groups, locations, d), torch.randn(columns, n, groups, locations, d)
    weights = torch.rand(n) * 3 if weighted else None
    assert_close(
        factors.input_factor(locations_last(a), sharing=sharing, weights=weights),
        reference.input_factor(a, sharing=sharing, weights=weights),
        **EXACT,
    )
    assert_close(
        factors.gradient_factor(locations_last(g), sharing=sharing),
        reference.gradient_factor(list(g), sharing=sharing),
        **EXACT,
    )


@pytest.mark.parametrize("locations", [1, 3, 4, 5, 20])
def test_gram_is_the_same_on_either_path(locations):
    """Fewer locations than rows are gathered first, others multiplied sample by sample."""
    t = torch.randn(3, 2, 4, locations)
    expected = torch.zeros(2, 4, 4)
    for i in range(3):
        for k in range(2):
            for l in range(locations):
                expected[k] += torch.outer(t[i, k, :, l], t[i, k, :, l])
    assert_close(factors.gram(t), expected, **EXACT)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gradient_survives_the_way_to_a_matrix_and_back(groups, bias):
    conv = nn.Conv2d(4, 6, (2, 3), groups=groups, bias=bias)
    matrix = factors.gradient_matrix(conv.weight, conv.bias, groups=groups)
    assert matrix.shape == (groups, 6 // groups, 4 // groups * 6 + int(bias))
    assert_close(matrix, reference.as_matrix(conv, conv.weight, conv.bias), **EXACT)
    weight, shift = factors.split_gradient_matrix(matrix, conv.weight, conv.bias)
    assert torch.equal(weight, conv.weight)
    assert torch.equal(shift, conv.bias) if bias else shift is None


def test_the_gradient_matrix_is_gradients_times_patches():
    """Layout of the matrix and of the inputs agree: Σ g aᵀ is the gradient of the layer."""
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    x = torch.randn(3, 4, 5, 5)
    out = conv(x)
    seed = torch.randn(out.shape)
    out.backward(seed)
    a = factors.conv_inputs(x, conv, bias=True)
    g = factors.conv_gradients(seed[None], conv)[0]
    expected = factors.gradient_matrix(conv.weight.grad, conv.bias.grad, groups=2)
    assert_close(torch.einsum("ngol,ngil->goi", g, a), expected, **EXACT)


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
    """For each column and sample: the gradient through that sample's outputs alone."""
    make, shape = NORMS[case]
    layer = make().train(training)
    nn.init.normal_(layer.weight)
    if getattr(layer, "running_mean", None) is not None:
        nn.init.normal_(layer.running_mean)
        nn.init.uniform_(layer.running_var, 0.5, 2.0)
    x, g = torch.randn(*shape), torch.randn(2, *shape)
    scale, shift = factors.norm_scores(x, g, layer)
    assert scale.shape == shift.shape == (2, shape[0], layer.weight.numel())
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
    assert_close(factors.embedding_diagonal(indices, g, rows), expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_product_does_not_depend_on_the_threads(dtype):
    """With one thread NumPy multiplies, with more PyTorch does."""
    t = torch.randn(3, 1, 7, 11, dtype=dtype)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(factors.gram(t))
    finally:
        torch.set_num_threads(before)
    one, two = results
    wanted = torch.einsum("bgil,bgjl->gij", t.double(), t.double()).to(dtype)
    torch.testing.assert_close(one, wanted)
    torch.testing.assert_close(two, wanted)
    assert one.shape == (1, 7, 7)


@pytest.mark.parametrize(("groups", "size", "terms"), [(1, 128, 128), (1, 131, 200), (2, 150, 129)])
def test_half_of_a_product_is_the_whole(groups: int, size: int, terms: int) -> None:
    t = torch.randn(terms, groups, size, 1, dtype=torch.float64)
    expected = torch.einsum("ngil,ngjl->gij", t, t) / 3
    assert_close(factors.gram(t, scale=1 / 3), expected)
