"""What every learner promises: over every method and every legal combination with a transform.

A method that is registered is in here by itself, see ``cases.py``.
"""

from __future__ import annotations

import copy
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from cases import (
    ALONE,
    COMBINED,
    LEGAL,
    REFUSED,
    TOYS,
    VARIANTS,
    Case,
    accuracy,
    blobs,
    convnet,
    generators,
    gradients,
    mlp,
    pictures,
    size_of,
)
from torch import Tensor, nn
from toys import assert_same, everything, seeded
from twins import assert_resumes

import ocar
from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.methods.registry import METHODS, TRANSFORMS, make_settings, preset_settings

EVERY_CASE = pytest.mark.parametrize("case", LEGAL, ids=str)
EVERY_VARIANT = pytest.mark.parametrize("case", [*LEGAL, *VARIANTS], ids=str)
EVERY_METHOD = pytest.mark.parametrize("case", ALONE, ids=str)
EVERY_TOY = pytest.mark.parametrize("toy", TOYS)


def test_every_method_and_every_transform_is_here() -> None:
    assert {case.method for case in LEGAL} == set(METHODS)
    assert {case.transform for case in COMBINED} == set(TRANSFORMS)
    pairs = {tuple(case.kinds) for case in [*LEGAL, *REFUSED]}
    everyone = {(m.settings, t) for m in METHODS.values() for t in TRANSFORMS.values()}
    assert pairs >= everyone


# --- learning ------------------------------------------------------------------------------------


@EVERY_CASE
@EVERY_TOY
def test_learns_classes_that_arrive_one_after_another(case: Case, toy: str) -> None:
    """Five classes in three stretches; a head of two units doubles twice; the last batch is short.

    On images, where there is little time, all classes come from the start.
    """
    model, stream = TOYS[toy]
    learner = case.make(model(units=2))
    late = toy == "mlp"
    stretches = [([7, 3], 10), ([11], 5), ([0, 5], 10)] if late else [([0, 3, 5, 7, 11], 10)]
    batches = [b for labels, count in stretches for b in stream(count, labels, size=12)]
    batches[-1] = tuple(t[:3] for t in batches[-1])
    for x, y in batches:
        x_before, y_before = x.clone(), y.clone()
        report = learner.learn(x, y)
        assert torch.isfinite(report.loss)
        assert torch.equal(x, x_before)
        assert torch.equal(y, y_before)
        assert len(learner.memory) <= 30
    assert report.classes == 5
    assert sorted(learner.classes) == [0, 3, 5, 7, 11]
    assert learner.model[-1].out_features == 8
    assert learner.batches == len(batches)
    ((x, y),) = stream(1, [0, 3, 5, 7, 11], seed=5, size=200)
    assert learner.predict(x).shape == (200, 5)
    assert accuracy(learner, x, y) > case.bar


@EVERY_VARIANT
def test_one_class_only_and_batches_of_any_size(case: Case) -> None:
    """The first batch, with an empty memory, is a single sample."""
    learner = case.make(convnet())
    assert learner.classes == ()
    assert len(learner.memory) == 0
    for (x, y), size in zip(pictures(4, [4]), (1, 10, 3, 1), strict=True):
        report = learner.learn(x[:size], y[:size])
        assert torch.isfinite(report.loss)
    assert report.classes == 1
    assert learner.classes == (4,)
    logits = learner.predict(x)
    assert logits.shape == (10, 1)
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p).all() for p in learner.model.parameters())


@EVERY_CASE
def test_the_memory_and_all_else_that_is_kept_is_bounded(case: Case) -> None:
    learner = case.make(mlp(units=4), memory=12, passes=1)
    y = torch.arange(9) % 3  # the same classes in each batch, so that nothing has to grow
    centres = torch.eye(6)[:3] * 4
    generator = torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(20):
        learner.learn(centres[y] + torch.randn(9, 6, generator=generator), y)
        assert len(learner.memory) <= 12
        sizes.append(size_of(learner))
    assert learner.memory.seen == 180
    assert len(learner.memory) == 12
    assert len(set(sizes[12:])) == 1
    x = centres[y] + torch.randn(9, 6, generator=generator)
    assert accuracy(learner, x, y) > 0.5


@EVERY_METHOD
def test_remember_stores_without_learning(case: Case) -> None:
    learner = case.make(mlp())
    weights = nn.utils.parameters_to_vector(learner.model.parameters()).detach()
    ((x, y),) = blobs(1, [0, 1])
    learner.remember(x, y)
    now = nn.utils.parameters_to_vector(learner.model.parameters()).detach()
    assert torch.equal(now, weights)
    assert len(learner.memory) == 10
    assert sorted(learner.classes) == [0, 1]
    assert learner.batches == learner.steps == 0
    for x, y in blobs(3, [0, 1, 2, 3]):
        assert torch.isfinite(learner.learn(x, y).loss)


@EVERY_CASE
def test_frozen_layers_stay(case: Case) -> None:
    model = convnet()
    for layer in (model[0], model[1]):
        layer.requires_grad_(False)
    model[1].running_mean.fill_(0.1)
    learner = case.make(model)
    frozen = {k: v.clone() for k, v in model.state_dict().items() if k[0] in "01"}
    for x, y in pictures(3, [0, 1]):
        learner.learn(x, y)
    learner.predict(x)
    for name, before in frozen.items():  # BatchNorm's statistics too
        assert torch.equal(model.state_dict()[name], before), name


@EVERY_METHOD
@EVERY_TOY
def test_models_with_16_bits_learn_and_predict(case: Case, toy: str) -> None:
    model, stream = TOYS[toy]
    learner = case.make(model().bfloat16())
    for labels in ([0, 1], [2, 3, 4]):
        for x, y in stream(3, labels):
            learner.learn(x, y)
    assert learner.guarded.skipped == 0
    assert learner.predict(x).isfinite().all()


@EVERY_CASE
@pytest.mark.parametrize("likelihood", ["gaussian", "student-t"])
def test_regression_is_learned_or_refused(case: Case, likelihood: str) -> None:
    regression = {"likelihood": likelihood, "memory_kind": "reservoir"}
    try:
        learner = case.make(seeded(lambda: nn.Linear(6, 2)), lr=0.02, **regression)
    except ConfigError as error:
        assert_is_a_reason(str(error))
        return
    truth = torch.randn(6, 2, generator=torch.Generator().manual_seed(3))
    errors = []
    for x, _ in blobs(20, [0, 1, 2]):
        errors.append(float((learner.predict(x) - x @ truth).square().mean()))
        learner.learn(x / 3, x / 3 @ truth)
    assert errors[-1] < 0.5 * errors[0]
    assert learner.classes == ()


# --- predicting ----------------------------------------------------------------------------------


@EVERY_METHOD
def test_predictions_follow_weights_that_others_change(case: Case) -> None:
    """What is derived from weights and memory, such as class means, is derived anew."""
    learner, other = (case.make(mlp(4)) for _ in range(2))
    for x, y in blobs(4, [0, 1, 2]):
        learner.learn(x, y)
        other.learn(x + 1, y)
    before = learner.predict(x)
    learner.model.load_state_dict(other.model.state_dict())
    after = learner.predict(x)
    # A method that learns for predictions only, on the memory, does not use them.
    assert torch.equal(after, before) is not learner.objective.learns
    torch.testing.assert_close(after, copy.deepcopy(learner).predict(x))


@pytest.mark.parametrize(
    ("case", "settings"),
    [(case, {}) for case in LEGAL + VARIANTS]
    + [(case, case.average) for case in ALONE if case.average],
    ids=lambda part: str(part) if isinstance(part, Case) else ",".join(part.values()) or "plain",
)
def test_predict_changes_nothing(case: Case, settings: dict[str, str]) -> None:
    """Neither weights, statistics, memory nor curvature, nor gradients, modes or generators."""
    learner = case.make(convnet(), augment=ocar.CropFlip(padding=1), **settings)
    for labels in ([0, 1], [2], [2], [0, 1], [2], [0, 1]):
        ((x, y),) = pictures(1, labels)
        learner.learn(x, y)
    before = everything(learner)
    aside = gradients(learner), generators(learner), torch.get_rng_state()
    modes = [m.training for m in learner.model.modules()]
    image = x.clone()

    first = learner.predict(x)
    again = learner.predict(x, chunk=3)
    repeatedly = learner.predict_repeatedly(x)
    repeated = repeatedly(len(x), torch.clone)
    some = repeatedly(4, torch.clone)
    repeatedly.wait()

    assert_same(everything(learner), before)
    now = gradients(learner), generators(learner), torch.get_rng_state()
    for part, same in zip(now, aside, strict=True):
        assert_equal(part, same)
    assert [m.training for m in learner.model.modules()] == modes
    assert torch.equal(x, image)
    assert not first.requires_grad
    assert first.shape == (10, 3)
    for other in (again, repeated):
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(some, first[:4], rtol=1e-5, atol=1e-5)

    for labels in ([2], [3, 4]):  # the head doubles
        ((new, y),) = pictures(1, labels, seed=1)
        learner.learn(new, y)
        expected = learner.predict(x)
        assert expected.shape == (10, len(learner.classes))
        torch.testing.assert_close(repeatedly(len(x), torch.clone), expected, rtol=1e-5, atol=1e-5)
        assert not torch.equal(expected[:, :3], first)


def assert_equal(one: object, other: object) -> None:
    if isinstance(one, list):
        assert isinstance(other, list)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        assert torch.equal(one, other)
    else:
        assert one is other


# --- going on, and beginning again ---------------------------------------------------------------


def stream_of(toy: str) -> list[tuple[Tensor, Tensor]]:
    """Seven batches; the head doubles in the middle and once more; the last is short."""
    batches = [
        batch
        for labels, count in (([0, 1], 2), ([1, 2], 2), ([3, 4], 3))
        for batch in TOYS[toy][1](count, labels, seed=count, size=6)
    ]
    x, y = batches[-1]
    return [*batches[:-1], (x[:3], y[:3])]


def options(case: Case, toy: str) -> dict[str, object]:
    if toy == "mlp":
        return {"seed": 3}
    pixels = ocar.Normalize(mean=(0.4,), std=(0.3,))
    return {"seed": 3, "normalize": pixels, "augment": ocar.CropFlip(padding=1), **case.average}


def run(learner: ocar.Learner, batches: list, *, watched: bool = False) -> None:
    """Learn all; a boundary comes after the second and the fourth batch."""
    for x, y in batches:
        learner.learn(x, y)
        if learner.batches in (2, 4) and learner.wants_boundaries:
            learner.boundary()
        if watched:
            learner.predict(x)
            learner.state()


@pytest.mark.parametrize(
    ("case", "toy"),
    [(case, "convnet") for case in [*LEGAL, *VARIANTS]] + [(case, "mlp") for case in ALONE],
    ids=str,
)
def test_a_run_can_be_repeated_and_interrupted(case: Case, toy: str, tmp_path: Path) -> None:
    """Neither predictions in between, nor a restart, nor the global generator change a bit."""
    make, batches = TOYS[toy][0], stream_of(toy)
    learner = case.make(make(), **options(case, toy))
    before = torch.get_rng_state()
    run(learner, batches[:4])
    assert torch.equal(torch.get_rng_state(), before)

    learner.save(tmp_path / "ckpt")
    restored = ocar.load(tmp_path / "ckpt", make())
    assert type(restored) is type(learner)
    assert repr(restored) == repr(learner)
    assert_same_learner(restored, learner)

    again = case.make(make(), **options(case, toy))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        run(again, batches, watched=True)
    run(learner, batches[4:])
    run(restored, batches[4:])
    assert_same_learner(restored, learner)
    assert_same_learner(again, learner)


def assert_same_learner(one: ocar.Learner, other: ocar.Learner) -> None:
    assert_same(everything(one), everything(other))
    assert_equal(generators(one), generators(other))
    ((x, _),) = (pictures if one.model[0].weight.dim() == 4 else blobs)(1, [0, 1, 2])
    assert torch.equal(one.predict(x), other.predict(x))


@EVERY_CASE
def test_another_seed_gives_another_run(case: Case) -> None:
    """In what is drawn from memory as well as in augmentation and added units."""
    predictions = []
    for seed in (3, 4):
        learner = case.make(convnet(), **options(case, "convnet") | {"seed": seed})
        run(learner, stream_of("convnet")[:3])
        predictions.append(learner.predict(stream_of("convnet")[0][0]))
    assert not torch.equal(*predictions)


@EVERY_VARIANT
def test_a_learner_can_be_taken_back(case: Case) -> None:
    """To an earlier state, or that of another; what it keeps for predictions does not stay."""
    learner = case.make(mlp(units=4))
    first, *rest = blobs(3, [0, 1, 2, 3], size=8)
    learner.learn(*first)
    tensors, values = learner.state()
    tensors, early = {n: t.clone() for n, t in tensors.items()}, everything(learner)
    at_first = learner.predict(first[0])
    for x, y in rest:
        learner.learn(x, y)
    late, at_last = everything(learner), learner.predict(first[0])
    learner.load_state(tensors, values)
    assert_same(everything(learner), early)
    assert torch.equal(learner.predict(first[0]), at_first)
    for x, y in rest:
        learner.learn(x, y)
    assert_same(everything(learner), late)
    assert torch.equal(learner.predict(first[0]), at_last)
    other = case.make(mlp(units=4))
    for x, y in blobs(3, [0, 1, 2, 3], seed=1, size=8):  # as many samples, but others
        other.learn(x, y)
    other.predict(first[0])
    other.load_state(*learner.state())
    assert torch.equal(other.predict(first[0]), at_last)


@EVERY_METHOD
def test_a_save_after_the_head_grew_without_a_step(case: Case, tmp_path: Path) -> None:
    """A batch that is only remembered doubles the head; what follows the head does so later."""
    learner = case.make(mlp())
    for x, y in blobs(3, [0, 1]):
        learner.learn(x, y)
    learner.boundary()
    learner.remember(*next(blobs(1, [2, 3, 4])))
    assert_resumes(learner, list(blobs(2, [0, 1, 2, 3, 4], seed=1)), mlp(), tmp_path)


@EVERY_METHOD
def test_a_checkpoint_of_another_model_is_refused(case: Case, tmp_path: Path) -> None:
    learner = case.make(mlp())
    for x, y in blobs(2, [0, 1, 2]):
        learner.learn(x, y)
    learner.save(tmp_path / "ckpt")
    other = seeded(lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)))
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"of another model: '\d.weight' has shape \("):
        ocar.load(tmp_path / "ckpt", other)
    assert_same(other.state_dict(), before)
    with pytest.raises(CheckpointError, match="of another model: missing"):
        ocar.load(tmp_path / "ckpt", seeded(lambda: nn.Sequential(nn.Linear(6, 2))))


# --- boundaries ----------------------------------------------------------------------------------


@EVERY_CASE
def test_a_boundary_is_harmless(case: Case) -> None:
    """Before anything was learned, twice in a row, and at the end."""
    learner = case.make(mlp())
    learner.boundary()
    for labels in ([0, 1], [2, 3], [0, 4]):
        for x, y in blobs(3, labels):
            assert torch.isfinite(learner.learn(x, y).loss)
        before, predicted = everything(learner), learner.predict(x)
        learner.boundary()
        learner.boundary()
        if not learner.wants_boundaries:
            assert_same(everything(learner), before)
        assert torch.equal(learner.predict(x), predicted)
    assert torch.isfinite(learner.predict(x)).all()


# --- wrong input ---------------------------------------------------------------------------------

GOOD_X, GOOD_Y = next(blobs(1, [0, 1, 2]))


def with_value(value: float) -> Tensor:
    x = GOOD_X.clone()
    x[3, 2] = value
    return x


BAD = [
    (with_value(float("nan")), GOOD_Y, r"x must be finite; 1 of 10 samples hold NaN or Inf"),
    (with_value(float("inf")), GOOD_Y, r"x must be finite; 1 of 10 samples hold NaN or Inf"),
    (GOOD_X, GOOD_Y - 1, r"Labels must be at least 0; given -1"),
    (GOOD_X, GOOD_Y.float(), r"y must be integer labels of shape \(n,\); given torch.float32"),
    (GOOD_X, GOOD_Y.bool(), r"y must be integer labels of shape \(n,\); given torch.bool"),
    (GOOD_X, GOOD_Y[:9], r"one entry for each of 10 samples; given \(9,\)"),
    (GOOD_X, GOOD_Y.tolist(), r"y must be a tensor or an array of labels .* given list"),
    (GOOD_X, GOOD_Y[:, None], r"y must be integer labels of shape \(n,\)"),
    (GOOD_X[:, :5], GOOD_Y, r"shape \(5,\)|cannot take samples|given \(5,\)"),
    (GOOD_X[:0], GOOD_Y[:0], r"The batch is empty"),
    (GOOD_X.long(), GOOD_Y, r"as floating point|of uint8 or floating point|and torch.int64"),
    (GOOD_X[0], GOOD_Y, r"x must be a tensor \(n, ...\) of samples; given \(6,\)"),
    (GOOD_X.tolist(), GOOD_Y, r"x must be a tensor or an array \(n, ...\) .* given list"),
]
BAD_LATER = [
    (GOOD_X.double(), GOOD_Y, r"torch.float32, as before; given \(6,\) and torch.float64"),
    (GOOD_X[:, :, None], GOOD_Y, r"samples of shape \(6,\) .* as before; given \(6, 1\)"),
]


@EVERY_CASE
@pytest.mark.parametrize("started", [False, True], ids=["at once", "later"])
def test_wrong_input_leaves_it_untouched(case: Case, started: bool) -> None:
    learner = case.make(mlp(), lr=0.01)
    if started:
        learner.learn(GOOD_X, GOOD_Y)
        learner.learn(GOOD_X, GOOD_Y + 1)
    before = everything(learner)
    aside = gradients(learner), generators(learner)
    for x, y, message in BAD + (BAD_LATER if started else []):
        for call in (learner.learn, learner.remember):
            with pytest.raises(InputError, match=message):
                call(x, y)
        assert_same(everything(learner), before)
    if started:
        for x in (with_value(float("nan")), GOOD_X[:, :5], GOOD_X.double(), GOOD_X.long()):
            for predict in (learner.predict, learner.predict_repeatedly):
                with pytest.raises(InputError, match="x must "):
                    predict(x)
        assert_same(everything(learner), before)
    for part, same in zip((gradients(learner), generators(learner)), aside, strict=True):
        assert_equal(part, same)
    learner.learn(GOOD_X, GOOD_Y)  # and it works on


# --- names and settings --------------------------------------------------------------------------


@EVERY_CASE
def test_repr_shows_every_setting(case: Case) -> None:
    learner = case.make(convnet(), augment=ocar.CropFlip(padding=1), seed=17)
    text = repr(learner)
    for kind, settings in zip(case.kinds, case.settings(seed=17), strict=True):
        assert f"{kind.__name__}(" in text
        for field in fields(kind):
            if field.name != "augment":
                assert f"{field.name}={getattr(settings, field.name)!r}" in text
    assert "Sequential" in text
    assert "augment=CropFlip(padding=1, flip=True)" in text
    assert " at 0x" not in text
    assert "\n" not in text
    learner.learn(*next(pictures(1, [0, 1])))
    assert repr(learner) == text


def assert_is_a_reason(text: str) -> None:
    """At least one sentence for people."""
    assert re.match(r"[A-Z].*\w.*\.$", text), text
    assert len(text.split()) >= 5, text


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_with_the_reason(case: Case) -> None:
    own, transform = case.settings()
    model = convnet()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ConfigError) as caught:
        ocar.Learner(model, own, transform=transform)
    reason = str(caught.value)
    assert_is_a_reason(reason)
    assert len(reason.split()) >= 10, "what, why, and what to use instead"
    assert not reason.startswith("Invalid"), "that is a setting, not the combination"
    assert_same(model.state_dict(), before)
    if own.refuses(transform) is not None:  # then the names alone say so
        given = {f.name: getattr(s, f.name) for s in (own, transform) for f in fields(s)}
        with pytest.raises(ConfigError, match=re.escape(reason)):
            make_settings(case.method, transform=case.transform, **given)


@EVERY_METHOD
def test_a_method_has_a_line_about_it_and_settings_for_split_digits(case: Case) -> None:
    about = METHODS[case.method].about
    assert_is_a_reason(about)
    assert "\n" not in about
    settings = preset_settings("split-digits", case.method)
    own, *_ = make_settings(case.method, **settings)
    assert own.memory == settings["memory"]


@pytest.mark.parametrize(
    "kind", dict.fromkeys(k for case in LEGAL for k in case.kinds), ids=lambda k: k.__name__
)
def test_settings_are_frozen_and_named_only(kind: type) -> None:
    assert kind.__dataclass_params__.frozen
    assert all(field.kw_only for field in fields(kind))
    assert kind.__doc__
