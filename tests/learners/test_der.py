"""DER and DER++ against plain loops, and what is stored while the head grows."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import EXACT
from torch import Tensor
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, images, mlp, vectors, weights
from twins import masked_and_grown

import ocar
from ocar.errors import ConfigError
from ocar.methods.der import squared_distance

LR = 0.2


def log_loss(logits: Tensor, unit: Tensor, units: int) -> Tensor:
    return torch.logsumexp(logits[:units], 0) - logits[unit]


def loss_by_hand(model, x, y, dark, plain, *, alpha, beta, units, distance) -> Tensor:
    """CE(new) + α d + β CE, sample by sample and class by class."""
    loss = sum(log_loss(f, unit, units) for f, unit in zip(model(x), y, strict=True)) / len(y)
    squares, pairs = 0.0, 0
    for raw, z, known in zip(dark.x, dark.extras["logits"], dark.extras["known"], strict=True):
        outputs = model(raw[None])[0]
        for k in range(int(known)):
            squares = squares + (outputs[k] - z[k]) ** 2
            pairs += 1
    loss = loss + alpha * squares / (pairs if distance == "mean" else len(dark))
    terms = [log_loss(model(a[None])[0], b, units) for a, b in zip(plain.x, plain.y, strict=True)]
    return loss + beta * sum(terms) / max(len(terms), 1)


def record_draws(learner: ocar.Learner) -> list[Tensor]:
    """What the learner draws from memory from now on."""
    drawn: list[Tensor] = []
    draw = learner.memory.draw

    def recording(n: int) -> Tensor:
        drawn.append(draw(n))
        return drawn[-1]

    learner.memory.draw = recording  # type: ignore[method-assign]
    return drawn


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("distance", ["mean", "norm"])
@pytest.mark.parametrize("labels_from", ["same", "own"])
@pytest.mark.parametrize("told", [(), tuple(range(12))], ids=["growing", "told"])
def test_a_step_descends_the_sum_of_three_terms(distance, labels_from, told) -> None:
    """While the head grows from 2 units to 8, so that the stored logits cover 2, 4 or 5."""
    options = {"alpha": 0.3, "beta": 0.7, "distance": distance, "labels_from": labels_from}
    learner = ocar.make_learner(
        "der++",
        mlp(units=2),
        lr=LR,
        memory=30,
        replay_batch=6,
        passes=1,
        classes=told,
        **RAW,
        **options,
    )
    drawn = record_draws(learner)
    covered = set()
    for i, labels in enumerate([[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]]):
        ((x, y),) = vectors(1, labels, seed=i, size=5)
        x = x.double()
        drawn.clear()
        learner.head.reserve(len({*learner.classes, *y.tolist()}))  # to know the new weights
        before = copy.deepcopy(learner.model)
        stored = learner.memory.gather(learner.memory.slots)
        learner.learn(x, y)
        if i == 0:
            assert [len(slots) for slots in drawn] == [0] * (1 + (labels_from == "own"))
            continue
        rows = {int(slot): row for row, slot in enumerate(stored.indices)}
        chosen = [[rows[int(slot)] for slot in slots] for slots in drawn]
        assert [len(c) for c in chosen] == [min(6, 5 * i)] * (1 + (labels_from == "own"))
        dark, plain = (
            ocar.memory.Batch(
                stored.x[c],
                stored.y[c],
                extras={name: extra[c] for name, extra in stored.extras.items()},
                indices=stored.indices[c],
            )
            for c in (chosen[0], chosen[-1])
        )
        covered |= set(dark.extras["known"].tolist())
        units = torch.tensor([learner.classes.index(label) for label in y.tolist()])
        loss = loss_by_hand(
            before,
            x,
            units,
            dark,
            plain,
            alpha=0.3,
            beta=0.7,
            units=len(learner.classes),
            distance=distance,
        )
        loss.backward()
        step = torch.cat([p.grad.flatten() for p in before.parameters()])
        assert_close(weights(learner.model), weights(before) - LR * step, **EXACT)
    assert covered == ({12} if told else {2, 4, 5})


@pytest.mark.parametrize("method", ["der", "der++"])
def test_stored_logits_are_those_of_the_plain_sample_in_eval_mode_once_it_is_learned(
    method: str,
) -> None:
    model = convnet(units=4)
    normalize = ocar.Normalize(mean=(0.4,), std=(0.3,))
    learner = ocar.make_learner(
        method, model, lr=LR, memory=50, normalize=normalize, augment=ocar.CropFlip(padding=2)
    )
    for i, (x, y) in enumerate(images(4, [0, 1, 2])):
        learner.learn(x, y)
        expected = copy.deepcopy(model).eval()(normalize(x)).detach()
        stored = learner.memory.gather(learner.memory.slots)
        last = slice(10 * i, 10 * i + 10)
        assert torch.equal(stored.x[last], x)  # nothing is left out yet, so slots are in order
        assert_close(stored.extras["logits"][last], expected)
        assert stored.extras["known"][last].tolist() == [len(learner.classes)] * 10
        assert model.training


@pytest.mark.parametrize("told", [(), (0, 1, 2, 3)], ids=["growing", "told"])
def test_without_its_weights_it_is_fine_tuning_without_replay(told) -> None:
    """Batch-norm included: what has no weight is not drawn."""
    tuned = ocar.ER(convnet(units=2), lr=LR, replay_batch=0, classes=told)
    dark = ocar.make_learner("der++", convnet(units=2), lr=LR, alpha=0.0, beta=0.0, classes=told)
    single = ocar.make_learner("der", convnet(units=2), lr=LR, alpha=0.0, classes=told)
    for x, y in images(6, [0, 1, 2, 3]):
        for learner in (tuned, dark, single):
            learner.learn(x, y)
    for learner in (dark, single):
        assert_same(learner.model.state_dict(), tuned.model.state_dict())


def test_der_is_der_plus_plus_without_labels() -> None:
    one = ocar.make_learner("der", convnet(), lr=LR, alpha=0.6)
    other = ocar.make_learner("der++", convnet(), lr=LR, alpha=0.6, beta=0.0)
    for x, y in images(6, [0, 1, 2, 3]):
        one.learn(x, y)
        other.learn(x, y)
    assert_same(one.model.state_dict(), other.model.state_dict())


@pytest.mark.usefixtures("double")
def test_the_norm_is_the_mean_times_the_number_of_classes_in_a_told_head() -> None:
    mean = ocar.make_learner("der++", mlp(), lr=LR, alpha=0.8, classes=range(4))
    norm = ocar.make_learner("der++", mlp(), lr=LR, alpha=0.2, distance="norm", classes=range(4))
    for x, y in vectors(5, [0, 1, 2, 3]):
        mean.learn(x.double(), y)
        norm.learn(x.double(), y)
    assert_close(weights(mean.model), weights(norm.model), **EXACT)


@pytest.mark.parametrize("kind", ["mean", "norm"])
def test_units_that_were_unknown_get_no_gradient(kind) -> None:
    outputs = torch.randn(5, 8, requires_grad=True)
    known = torch.tensor([1, 8, 3, 3, 5])
    squared_distance(outputs, torch.randn(5, 8), known, kind=kind).backward()
    for row, count in zip(outputs.grad, known.tolist(), strict=True):
        assert (row[:count] != 0).all()
        assert (row[count:] == 0).all()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("transform", [None, "ocar"])
def test_a_head_with_units_to_spare_learns_as_one_that_grows(transform) -> None:
    """Whatever the width of what is stored, only the classes known count."""
    options = {"lr": 0.05, "memory": 20, "transform": transform}
    if transform is not None:
        options |= {"tau_step": 1e-3, "ema": 0.2, "fisher": "exact"}
    masked, grown = masked_and_grown(
        lambda model: ocar.make_learner("der++", model, **options),
        [[0, 1]] * 3 + [[2, 3]] * 3 + [[4]] * 3,
    )
    stored = [learner.memory.gather(learner.memory.slots).extras for learner in (masked, grown)]
    assert [extras["logits"].shape[1] for extras in stored] == [16, 8]
    assert stored[0]["known"].tolist() == stored[1]["known"].tolist()
    assert set(stored[0]["known"].tolist()) == {2, 4, 5}
    for one, other, known in zip(
        stored[0]["logits"], stored[1]["logits"], stored[0]["known"], strict=True
    ):
        assert_close(one[:known], other[:known], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("how", ["learn", "remember"])
def test_graphs_are_forgotten_after_the_stored_logits_were_made_wider(how: str) -> None:
    learner = ocar.make_learner("der++", mlp(units=2), lr=LR)
    for x, y in vectors(2, [0, 1]):
        learner.learn(x, y)
    widths = []
    learner._steps.graph.forget = lambda: widths.append(
        learner.memory._columns.tensors["logits"].shape[1]
    )
    ((x, y),) = vectors(1, [2, 3])
    getattr(learner, how)(x, y)
    learner.learn(x, y)
    learner.learn(x, y)
    assert widths == [4]


def test_told_classes_are_not_seen_classes(tmp_path) -> None:
    """The weight of replay follows the classes that came: n_known / n_new of the paper's code."""
    learner = ocar.make_learner(
        "ocar-der++", mlp(), lr=0.02, tau_step=0.0, ema=0.2, classes=range(4), n_new=2
    )
    reports = [learner.learn(*next(vectors(1, labels))) for labels in ([0, 1], [2], [0, 3])]
    assert [report.values["replay_weight"] for report in reports] == [1.0, 1.5, 2.0]
    assert [report.classes for report in reports] == [2, 3, 4]
    learner = ocar.make_learner("der++", mlp(), lr=0.02, classes=range(4))
    learner.learn(*next(vectors(1, [0, 1])))
    learner.save(tmp_path / "ckpt")
    restored = ocar.load(tmp_path / "ckpt", mlp())
    assert restored.classes == (0, 1, 2, 3)
    assert restored.learn(*next(vectors(1, [2]))).classes == 3


@pytest.mark.parametrize("method", ["der", "der++"])
@pytest.mark.parametrize("first", [True, False])
def test_autocast_may_begin_and_end(method: str, first: bool) -> None:
    learner = ocar.make_learner(method, mlp(), lr=0.1, memory=20)
    for enabled in (first, not first, first):
        x, y = next(vectors(1, [0, 1, 2], seed=learner.batches))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            learner.learn(x, y)
    assert learner.guarded.total == 0
    assert learner.memory.state_dict()["columns.logits"].dtype == torch.float32


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("der", {"alpha": -0.1}, "Invalid alpha=-0.1. Must be at least 0"),
        ("der++", {"beta": float("inf")}, "Invalid beta=inf. Must be at least 0"),
        ("der", {"distance": "l1"}, "Invalid distance='l1'. Must be one of 'mean', 'norm'"),
        ("der++", {"labels_from": "both"}, "Invalid labels_from='both'"),
        (
            "der++",
            {"likelihood": "gaussian", "memory_kind": "reservoir"},
            "'categorical': a regression has no logits",
        ),
        ("der", {"beta": 1.0}, "DERSettings has no setting beta"),
    ],
)
def test_wrong_settings_are_refused(method, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ocar.make_learner(method, mlp(), lr=LR, **settings)
