"""What OCM and OnPro share, against plain loops: rotations, contrasts, stretches of a stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tolerances import EXACT
from torch.testing import assert_close
from toys import convnet, images, mlp

import ocar
from ocar.errors import ConfigError
from ocar.methods import contrastive
from ocar.methods.rotated import AUGMENT, same_class
from ocar.methods.stretches import Stretches

EPS = 1e-8


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


# --- rotations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [6, 5])
def test_sixteen_ways_to_turn_an_image(width: int) -> None:
    x = normal(3, 2, width, width).numpy()
    got = contrastive.rotations(torch.from_numpy(x)).numpy().reshape(16, *x.shape)
    half = width // 2
    found = []
    for quarter in range(4):
        for down in ((), ("right",), ("left", "right"), ("left",)):
            for i, image in enumerate(x):
                turned = image.copy()
                if "left" in down:
                    turned[:, :, :half] = image[:, ::-1, :half][:, :, ::-1]
                if "right" in down:
                    turned[:, :, half:] = image[:, ::-1, half:][:, :, ::-1]
                turned = np.rot90(turned, quarter, axes=(1, 2))
                np.testing.assert_array_equal(got[len(found), i], turned)
            found.append(down)
    np.testing.assert_array_equal(got[0], x)
    assert len({way.tobytes() for way in got}) == 16


def test_what_is_not_square_is_turned_in_eight_ways_and_no_image_in_one() -> None:
    x = normal(3, 1, 4, 6)
    assert contrastive.rotations(x).shape == (24, 1, 4, 6)
    assert torch.equal(contrastive.rotations(x)[12:15], x.flip(2, 3))
    vectors = normal(3, 6)
    assert torch.equal(contrastive.rotations(vectors), vectors)


def test_views_of_the_same_class_and_way() -> None:
    labels = torch.tensor([5, 7, 5])
    got = same_class(labels, views=2, rows=2 * 16 * 3)
    for i in range(96):
        for j in range(96):
            way_i, way_j = i % 48 // 3, j % 48 // 3
            same = way_i == way_j and labels[i % 3] == labels[j % 3]
            assert bool(got[i, j]) == bool(same)


def test_the_augmentation_is_that_of_the_published_code() -> None:
    flip, grey, crop = AUGMENT.parts
    assert (flip.probability, grey.probability) == (0.5, 0.25)
    assert (crop.scale, crop.padding, crop.align_corners) == ((0.3, 1.0), "reflection", False)
    assert crop.half_pixels
    assert crop.whole_side


# --- contrasts -----------------------------------------------------------------------------------


def loop_losses(s: torch.Tensor, temperature: float, *, itself: bool) -> list[list[float]]:
    result = []
    for i, row in enumerate(s.tolist()):
        largest = max(row)
        powers = [math.exp((value - largest) / temperature) for value in row]
        if not itself:
            powers[i] = 0.0
        total = sum(powers) + EPS
        result.append([-math.log(power / total + EPS) for power in powers])
    return result


@pytest.mark.parametrize("itself", [True, False])
def test_losses_of_pairs(itself: bool) -> None:
    s = normal(6, 6)
    got = contrastive.pair_losses(s, temperature=0.3, itself=itself)
    want = torch.tensor(loop_losses(s, 0.3, itself=itself), dtype=torch.float64)
    assert_close(got, want, **EXACT)


@pytest.fixture
def objective():
    """An objective with projections of 3 and features of 8."""
    learner = ocar.make_learner("ocm", mlp().double(), projection=3, temperature=0.2)
    return learner.objective


def test_new_samples_are_contrasted_as_in_a_loop(objective) -> None:
    u, f = normal(12, 3), normal(12, 8, seed=1)  # 3 samples, 2 ways, 2 views
    labels = torch.tensor([0, 1, 0])
    objective.similarity = lambda projections, features: projections @ features[:, :3].T
    got = objective.contrast_new(u, f, labels)
    losses = loop_losses(u @ f[:, :3].T, 0.2, itself=False)
    classes = [(int(labels[i % 3]), i % 6 // 3) for i in range(12)]
    total = sum(losses[i][i + 6] + losses[i + 6][i] for i in range(6)) / 12
    for i in range(12):
        same = [losses[i][j] for j in range(12) if classes[j] == classes[i]]
        total += 2 * sum(same) / (len(same) + EPS) / 12
    assert got.item() == pytest.approx(total, rel=1e-10)


def test_replayed_samples_are_contrasted_as_in_a_loop(objective) -> None:
    u, f = normal(12, 3), normal(12, 8, seed=1)
    labels = torch.tensor([0, 1, 0])
    objective.similarity = lambda projections, features: projections @ features[:, :3].T
    got = objective.contrast_old(u, f, labels, scale=0.5)
    losses = loop_losses(0.5 * u @ f[:, :3].T, 0.2, itself=True)
    classes = [(int(labels[i % 3]), i % 6 // 3) for i in range(12)]
    total = 0.0
    for i in range(12):
        same = [losses[i][j] for j in range(12) if classes[j] == classes[i]]
        total += sum(same) / (len(same) + EPS) / 12
    assert got.item() == pytest.approx(total, rel=1e-10)


def test_the_similarity_takes_neighbouring_columns_of_the_features(objective) -> None:
    u, f = normal(4, 3), normal(4, 8, seed=1)
    candidates = [u @ u.T + u @ f[:, k : k + 3].T for k in range(5)]
    counts = [0] * 5
    for _ in range(200):
        got = objective.similarity(u, f)
        counts[next(k for k in range(5) if torch.allclose(got, candidates[k], atol=1e-12))] += 1
    assert min(counts) > 20


def test_projections_as_long_as_the_features_take_all_columns() -> None:
    learner = ocar.make_learner("ocm", mlp().double(), projection=128)
    u, f = normal(4, 8), normal(4, 8, seed=1)
    assert_close(learner.objective.similarity(u, f), u @ u.T + u @ f.T)


def test_rows_of_unit_length() -> None:
    x = normal(4, 3)
    x[1] = 0
    want = torch.stack([row / (row.square().sum().sqrt() + EPS) for row in x])
    assert_close(contrastive.unit_rows(x), want)


# --- prototypes ----------------------------------------------------------------------------------


def loop_prototypes(first, second, y, temperature: float):
    classes = sorted(set(y.tolist()))
    means = [
        [torch.stack([v[i] for i in range(len(y)) if y[i] == c]).mean(0) for c in classes]
        for v in (first, second)
    ]
    z = [mean / mean.norm() for view in means for mean in view]
    k, total = len(classes), 0.0
    for i in range(2 * k):
        other = (i + k) % (2 * k)
        bottom = sum(math.exp(float(z[i] @ z[j]) / temperature) for j in range(2 * k) if j != i)
        total -= math.log(math.exp(float(z[i] @ z[other]) / temperature) / bottom)
    kept = {c: (p + q) / 2 for c, p, q in zip(classes, *means, strict=True)}
    return total / (2 * k), kept


@pytest.mark.parametrize("labels", [[1, 4, 1, 0, 4], [2, 2, 2], [3]])
def test_prototypes_are_contrasted_as_in_a_loop(labels: list[int]) -> None:
    first, second, y = normal(len(labels), 6), normal(len(labels), 6, seed=1), torch.tensor(labels)
    loss, prototypes = contrastive.prototype_loss(first, second, y, classes=7, temperature=0.5)
    want, means = loop_prototypes(first, second, y, 0.5)
    assert loss.item() == pytest.approx(want, rel=1e-10, abs=1e-12)
    for unit in range(7):
        expected = means.get(unit, torch.zeros(6, dtype=torch.float64))
        assert_close(prototypes[unit], expected, **EXACT)


def test_one_class_alone_has_no_prototype_loss_and_a_finite_gradient() -> None:
    first, second = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    y = torch.tensor([2, 2, 2])
    loss, _ = contrastive.prototype_loss(first, second, y, classes=5, temperature=0.5)
    loss.backward()
    assert_close(loss.detach(), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-12)
    assert first.grad.abs().max() < 1e-12
    assert second.grad.abs().max() < 1e-12


# --- stretches -----------------------------------------------------------------------------------


def ends(kind: str, batches: list, **options) -> list[int]:
    """The batches before which a stretch ends; a batch may be the word for a boundary."""
    stretches = Stretches(kind, **{"quiet": 2, "length": 3, **options})
    found, index = [], 0
    for units in batches:
        if units == "boundary":
            stretches.boundary()
            continue
        before, said = stretches.ended, stretches.ends_before(units)
        stretches.begin(units)
        assert stretches.ended == before + said
        if said:
            found.append(index)
        index += 1
    return found


def test_stretches_end_where_they_are_told() -> None:
    assert ends("boundary", ["boundary", [0], [1], "boundary", [0], [2], "boundary", [2]]) == [2, 4]


def test_stretches_end_every_so_many_batches() -> None:
    assert ends("batches", [[0]] * 8) == [3, 6]


def test_stretches_end_where_a_new_label_comes_after_a_quiet_time() -> None:
    # 1 comes too soon to be another stretch, and so does 3 after 2.
    batches = [[0], [1], [0, 1], [1], [2, 0], [3], [2], [3], [2], [2]]
    assert ends("labels", batches) == [4]
    assert ends("labels", [*batches, [4]]) == [4, 10]
    assert ends("labels", batches, quiet=1) == [4]


def test_stretches_are_restored() -> None:
    one, other = (Stretches("labels", quiet=2, length=3) for _ in range(2))
    for units in ([0], [0], [0], [1], [1], [1]):
        one.begin(units)
    one.boundary()
    other.load_state_dict(one.state_dict())
    assert vars(other) == vars(one)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ocm", "onpro"])
def test_with_adam_every_transform_is_refused(method: str) -> None:
    own = {"transform": "ocar", "tau_step": 0.0, "ema": 0.1}
    with pytest.raises(ConfigError, match=r"steps with Adam.*OCARSettings.*Use optimizer='sgd'"):
        ocar.make_learner(method, mlp(), **own)
    learner = ocar.make_learner(method, convnet(units=2), lr=0.01, optimizer="sgd", **own)
    for labels in ([0, 1], [2]):
        for x, y in images(5, labels, size=4):
            assert torch.isfinite(learner.learn(x, y).loss)


@pytest.mark.parametrize("method", ["ocm", "onpro"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "Invalid temperature=0.0"),
        ({"betas": (0.9, 1.0)}, r"Invalid betas=\(0.9, 1.0\). Must be two numbers in \[0, 1\)"),
        ({"weight_decay": -1.0}, "Invalid weight_decay=-1.0"),
        ({"stretches": "tasks"}, "Invalid stretches='tasks'"),
        ({"optimizer": "rmsprop"}, "Invalid optimizer='rmsprop'"),
        ({"quiet": 0}, "Invalid quiet=0. Must be at least 1"),
        ({"likelihood": "gaussian"}, "Invalid likelihood='gaussian'. Must be 'categorical'"),
    ],
)
def test_wrong_settings_are_refused(method: str, options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ocar.make_learner(method, mlp(), **options)
