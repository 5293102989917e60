"""The roots of the Fisher, against diag(p) − ppᵀ; random ones by adding up all their draws.

What a root gives to any curvature is its second moment, Σ_c u_c u_cᵀ with u_c the
column of the whole batch. The diagonal blocks of that matrix must be each
sample's Fisher; the others are the cross-sample terms, which the coupled target
has and the independent one has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from checks import average
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch_norm_net, observe
from reference import categorical_fisher, class_columns, kronecker_factors, probabilities
from tolerances import DEVIATIONS, EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC, fisher
from ocar.curvature.fisher import (
    Categorical,
    Empirical,
    Exact,
    FisherRoot,
    Gaussian,
    Sampled,
    Sketched,
    Top,
    parse_root,
)
from ocar.errors import ConfigError, InputError

LOGITS = torch.tensor([[0.3, -1.2, 0.8], [2.0, 0.1, -0.5]], dtype=torch.float64)
MASKED = torch.tensor([True, False, True])

ROOTS = [
    Exact(),
    Exact(independent=True),
    Sketched(1),
    Sketched(4),
    Sketched(2, independent=True),
    Sampled(1),
    Sampled(3),
    Top(1),
    Top(2),
    Empirical(),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def second_moment(columns: Tensor) -> Tensor:
    """Σ_c u_c u_cᵀ of the batch, ``(n·outputs, n·outputs)``."""
    flat = columns.flatten(1)
    return flat.mT @ flat


def coupled_moment(logits: Tensor, active: Tensor | None = None) -> Tensor:
    return second_moment(torch.stack(class_columns(logits, active=active)))


def independent_moment(logits: Tensor, active: Tensor | None = None) -> Tensor:
    return torch.block_diag(*(categorical_fisher(row, active) for row in logits))


def all_signs(count: int) -> Iterator[Tensor]:
    for signs in product([-1.0, 1.0], repeat=count):
        yield torch.tensor(signs)


def expected_moment(
    monkeypatch: pytest.MonkeyPatch, root: FisherRoot, likelihood: Categorical
) -> Tensor:
    """E[Σ u uᵀ], by adding up every outcome of the random draws with its probability.

    The first run learns how many signs and labels are drawn, and with which
    probabilities; each other run is dealt one outcome.
    """
    drawn: dict[str, Tensor] = {}
    asked: dict[str, object] = {}

    def deal_signs(shape, like, generator):
        asked["signs"] = torch.Size(shape).numel()
        return drawn["signs"].view(shape) if "signs" in drawn else torch.ones(shape)

    def deal_labels(p, num_samples, replacement=False, *, generator):
        asked["labels"], asked["p"] = (p.shape[0], num_samples), p / p.sum(-1, keepdim=True)
        if "labels" in drawn:
            return drawn["labels"].view(p.shape[0], num_samples)
        return torch.zeros(p.shape[0], num_samples, dtype=torch.long)

    monkeypatch.setattr(fisher, "random_signs", deal_signs)
    monkeypatch.setattr(Tensor, "multinomial", deal_labels)
    root.columns(likelihood, generator())

    samples, draws = asked.get("labels", (0, 0))
    classes = likelihood.outputs.shape[1]
    total, mass = torch.zeros(()), 0.0
    for labels in product(range(classes), repeat=samples * draws):
        chance = 1.0
        for position, label in enumerate(labels):
            chance *= float(asked["p"][position // draws, label])
        if chance == 0:
            continue
        drawn["labels"] = torch.tensor(labels, dtype=torch.long)
        outcomes = list(all_signs(asked.get("signs", 0)))
        for signs in outcomes:
            drawn["signs"] = signs
            moment = second_moment(root.columns(likelihood, generator()))
            total = total + chance / len(outcomes) * moment
            mass += chance / len(outcomes)
    assert mass == pytest.approx(1)
    return total


# --- exact --------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 4),
    active=st.lists(st.booleans(), min_size=1, max_size=5).filter(any),
    masked=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_exact_columns_are_a_root_of_the_fisher(n, active, masked, scale, seed):
    logits = scale * torch.randn(n, len(active), generator=generator(seed))
    mask = torch.tensor(active) if masked else None
    columns = Exact().columns(Categorical(logits, mask), generator())
    assert columns.shape == (len(active), n, len(active))  # zeros for classes that do not exist
    for i in range(n):
        own = columns[:, i].mT @ columns[:, i]
        assert_close(own, categorical_fisher(logits[i], mask), **EXACT)
    assert_close(second_moment(columns), coupled_moment(logits, mask), **EXACT)


def test_classes_that_cannot_exist_need_no_column():
    logits = torch.cat([LOGITS, torch.full((len(LOGITS), 3), float("-inf"))], dim=1)
    columns = Exact().columns(Categorical(logits, most=LOGITS.shape[1] + 1), generator())
    assert len(columns) == LOGITS.shape[1] + 1
    assert_close(second_moment(columns), coupled_moment(logits), **EXACT)


@pytest.mark.parametrize("active", [None, MASKED])
def test_exact_independent_has_no_cross_sample_terms(active):
    columns = Exact(independent=True).columns(Categorical(LOGITS, active), generator())
    assert_close(second_moment(columns), independent_moment(LOGITS, active), **EXACT)


def test_the_two_targets_differ_between_samples_alone():
    coupled, independent = coupled_moment(LOGITS), independent_moment(LOGITS)
    assert_close(coupled[:3, :3], independent[:3, :3], **EXACT)
    assert float(coupled[:3, 3:].abs().max()) > 0.01
    assert not independent[:3, 3:].any()


# --- random roots, all draws added up -----------------------------------------------------------


@pytest.mark.parametrize("active", [None, MASKED])
@pytest.mark.parametrize("root", [Sketched(1), Sketched(2)], ids=str)
def test_shared_signs_are_unbiased_for_the_coupled_target(monkeypatch, root, active):
    moment = expected_moment(monkeypatch, root, Categorical(LOGITS, active))
    assert_close(moment, coupled_moment(LOGITS, active), **EXACT)


@pytest.mark.parametrize("active", [None, MASKED])
@pytest.mark.parametrize(
    "root", [Sketched(1, independent=True), Sampled(1), Top(1), Top(2), Top(4)], ids=str
)
def test_draws_made_per_sample_are_unbiased_for_the_independent_target(monkeypatch, root, active):
    moment = expected_moment(monkeypatch, root, Categorical(LOGITS, active))
    assert_close(moment, independent_moment(LOGITS, active), **EXACT)


@pytest.mark.parametrize("root", [Sketched(2, independent=True), Sampled(2), Sampled(3)], ids=str)
def test_more_draws_keep_the_scale(monkeypatch, root):
    moment = expected_moment(monkeypatch, root, Categorical(LOGITS[:1]))
    assert_close(moment, independent_moment(LOGITS[:1]), **EXACT)


def test_top_of_all_classes_is_exact_in_every_draw():
    for seed in range(5):
        columns = Top(3).columns(Categorical(LOGITS), generator(seed))
        for i in range(2):
            own = columns[:, i].mT @ columns[:, i]
            assert_close(own, categorical_fisher(LOGITS[i]), **EXACT)


# --- random roots, with the real generator ------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "target"),
    [
        (Sketched(4), "coupled"),
        (Sketched(4, independent=True), "independent"),
        (Sampled(4), "independent"),
        (Top(1), "independent"),
    ],
    ids=str,
)
def test_the_mean_of_many_draws_is_the_target(root, target):
    draws, source = 1500, generator(3)
    likelihood = Categorical(LOGITS)
    moments = torch.stack([second_moment(root.columns(likelihood, source)) for _ in range(draws)])
    expected = coupled_moment(LOGITS) if target == "coupled" else independent_moment(LOGITS)
    error = (moments.mean(0) - expected).abs()
    # The floor is for entries that are the same in every draw.
    assert bool((error <= DEVIATIONS * moments.std(0) / draws**0.5 + 1e-12).all())


@pytest.mark.parametrize("variance", [1.0, 0.25])
@pytest.mark.parametrize("root", [Sampled(1), Sampled(3), Sketched(2)], ids=str)
def test_the_mean_of_many_gaussian_draws_is_the_target(root, variance):
    draws, source = 1500, generator(3)
    likelihood = Gaussian(LOGITS, variance)
    moments = torch.stack([second_moment(root.columns(likelihood, source)) for _ in range(draws)])
    one = torch.eye(3) / variance
    both = isinstance(root, Sketched)
    expected = torch.kron(torch.ones(2, 2), one) if both else torch.block_diag(one, one)
    error = (moments.mean(0) - expected).abs()
    assert bool((error <= DEVIATIONS * moments.std(0) / draws**0.5 + 1e-12).all())


def test_random_signs_are_signs():
    signs = fisher.random_signs((100, 100), LOGITS, generator())
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert signs.dtype == LOGITS.dtype
    assert abs(float(signs.mean())) < DEVIATIONS / 100


@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_the_generator_decides_the_columns(root):
    labels = torch.tensor([2, 0])
    first, again = (root.columns(Categorical(LOGITS), generator(5), labels) for _ in range(2))
    assert_close(first, again, rtol=0, atol=0)


# --- masked classes, Gaussian roots, labels -----------------------------------------------------


@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_columns_of_masked_classes_are_zero(root):
    labels = torch.tensor([2, 0])
    for seed in range(5):
        columns = root.columns(Categorical(LOGITS, MASKED), generator(seed), labels)
        assert not columns[..., 1].any()
        assert bool(columns[..., MASKED].any())


@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_columns_do_not_require_grad(root):
    logits = LOGITS.clone().requires_grad_()
    columns = root.columns(Categorical(logits), generator(), torch.tensor([2, 0]))
    assert not columns.requires_grad


@pytest.mark.parametrize("variance", [1.0, 0.5, 4.0])
def test_gaussian_exact_columns_are_a_root(variance):
    likelihood = Gaussian(LOGITS, variance)
    coupled = Exact().columns(likelihood, generator())
    one = torch.eye(3) / variance
    assert_close(second_moment(coupled), torch.kron(torch.ones(2, 2), one), **EXACT)
    separate = Exact(independent=True).columns(likelihood, generator())
    assert_close(second_moment(separate), torch.block_diag(one, one), **EXACT)


def test_empirical_columns_are_the_gradients_of_the_log_likelihood():
    labels = torch.tensor([2, 0])
    logits = LOGITS.clone().requires_grad_()
    nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    columns = Empirical().columns(Categorical(LOGITS), generator(), labels)
    assert_close(columns, -logits.grad[None], **EXACT)


@pytest.mark.parametrize("variance", [1.0, 0.5])
def test_empirical_gaussian_columns_are_the_gradients_of_the_log_likelihood(variance):
    targets = torch.randn(2, 3)
    means = LOGITS.clone().requires_grad_()
    normal = torch.distributions.Normal(means, variance**0.5)
    normal.log_prob(targets).sum().backward()
    columns = Empirical().columns(Gaussian(LOGITS, variance), generator(), targets)
    assert_close(columns, means.grad[None], **EXACT)


def test_sampled_labels_follow_the_prediction():
    draws = 20_000
    columns = Sampled(draws).columns(Categorical(LOGITS), generator()) * draws**0.5
    for i in range(2):
        p = probabilities(LOGITS[i])
        frequencies = (columns[:, i] + p).mean(0)
        assert bool(((frequencies - p).abs() < DEVIATIONS * (p / draws).sqrt()).all())


def test_half_precision_outputs_give_single_precision_columns():
    columns = Exact().columns(Categorical(LOGITS.bfloat16()), generator())
    assert columns.dtype == torch.float32


# --- through batch normalisation ----------------------------------------------------------------


@pytest.mark.parametrize("independent", [False, True])
def test_signs_through_batch_norm_are_unbiased_for_their_target(monkeypatch, independent):
    """E[G] over all sign vectors equals the G of either target, and the targets differ."""
    model, x = batch_norm_net(outputs=2).train(), torch.randn(3, 2, 5, 5)
    root = Sketched(1, independent=independent)
    outcomes = list(all_signs(6 if independent else 2))
    means = {name: torch.zeros(()) for name in ("0", "3", "7")}
    for signs in outcomes:
        monkeypatch.setattr(fisher, "random_signs", lambda s, l, g, signs=signs: signs.view(s))
        kfac = KFAC(model, damping=0.1, ema=1.0, fisher=root)
        observe(kfac, x)
        for name in means:
            means[name] = means[name] + average(kfac, name, "G") / len(outcomes)
    coupled, separate = (
        kronecker_factors(model, x, list(means), target=target)
        for target in ("coupled", "independent")
    )
    for name, mean in means.items():
        own, other = (separate, coupled) if independent else (coupled, separate)
        assert_close(mean, own[name][1], **EXACT)
        if name != "7":  # behind the head there is no batch normalisation
            difference = torch.linalg.norm(mean - other[name][1])
            assert float(difference / torch.linalg.norm(mean)) > 0.02


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_the_text_of_a_root_names_it(root):
    assert parse_root(str(root)) == root
    assert parse_root(root) is root


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("exact", Exact()),
        (" exact(independent) ", Exact(independent=True)),
        ("sketched( 4 )", Sketched(4)),
        ("sketched(4,independent)", Sketched(4, independent=True)),
        ("sampled", Sampled(1)),
        ("sampled(12)", Sampled(12)),
        ("top(3)", Top(3)),
        ("empirical", Empirical()),
    ],
)
def test_roots_are_named_freely(text, root):
    assert parse_root(text) == root


@pytest.mark.parametrize(
    "text",
    [
        "", "exakt", "exact(3)", "sketched", "sketched()", "sketched(-1)", "sketched(1.5)",
        "sampled(2, independent)", "top", "top(2, independent)", "empirical(1)", "exact(",
        "sketched(4, independent", "sketched(4)(4)", "sketched(4, coupled)",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_root(text)
    assert str(caught.value) == (
        f"Invalid fisher={text!r}. Must be one of 'exact', 'exact(independent)', 'sketched(r)', "
        "'sketched(r, independent)', 'sampled(m)', 'top(m)', 'empirical'."
    )


@pytest.mark.parametrize("text", ["sketched(0)", "sampled(0)", "top(0)"])
def test_no_columns_at_all_are_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_root(text)
    assert str(caught.value) == f"Invalid fisher={text!r}. The number must be at least 1."


def test_top_refuses_a_gaussian_likelihood():
    with pytest.raises(ConfigError) as caught:
        Top(2).columns(Gaussian(LOGITS), generator())
    assert str(caught.value) == (
        "fisher='top(2)' needs a categorical likelihood; "
        "use 'exact', 'sketched(r)' or 'sampled(m)' in a regression."
    )


def test_empirical_needs_the_labels():
    with pytest.raises(InputError) as caught:
        Empirical().columns(Categorical(LOGITS), generator())
    assert str(caught.value) == "fisher='empirical' needs the labels: update(outputs, targets=y)."
