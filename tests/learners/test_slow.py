"""Slow weights and distillation against a loop that is written by hand, in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, convnet, pictures
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from toys import RAW, assert_same, mlp, never_wait, vectors
from twins import assert_resumes

import ocar
from ocar.augment import Compose, Grey, HorizontalFlip
from ocar.averaging import SlowWeights
from ocar.curvature import KFAC
from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.guard import Guard
from ocar.methods.context import mean_prediction
from ocar.state import save_state

BOTH: dict[str, Any] = {"prediction": "both", "distillation": 1.5}
ALONE: dict[str, Any] = {"memory": 1, "replay_batch": 0, "passes": 2, **RAW}


def normed(units: int = 5) -> nn.Module:
    """A network with BatchNorm, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        return nn.Sequential(hidden, nn.Linear(8, units)).double()


def stream(count: int = 6) -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in vectors(count, [0, 1, 2])]


def classes(y: Tensor, known: list[int]) -> Tensor:
    """The unit of each label, in order of appearance."""
    known += [label for label in dict.fromkeys(y.tolist()) if label not in known]
    return torch.tensor([known.index(label) for label in y.tolist()])


def kl(slow: Tensor, fast: Tensor, temperature: float) -> Tensor:
    """T² KL(slow ‖ fast) of each sample."""
    q, p = (functional.softmax(z / temperature, 1) for z in (slow, fast))
    return temperature**2 * (q * (q.log() - p.log())).sum(1)


def follow(slow: nn.Module, model: nn.Module, rate: float) -> None:
    with torch.no_grad():
        for own, other in zip(slow.state_dict().values(), model.state_dict().values(), strict=True):
            if own.is_floating_point():
                own += rate * (other - own)


def by_hand(
    model: nn.Module, *, weight: float, temperature: float = 1.0, ocar_lr: float | None = None
) -> tuple[nn.Module, list[int]]:
    """Two steps of SGD, or of OCAR without replay, a batch; returns the slow model."""
    slow = copy.deepcopy(model).eval()
    kfac = KFAC(model, damping=0.1, ema=0.3, fisher="exact", max_cost=None)
    known: list[int] = []
    for batch, (x, y) in enumerate(stream()):
        units = classes(y, known)
        for step in range(2):
            model.train().zero_grad()
            with kfac.record():
                outputs = model(x)
            seen = outputs[:, : len(known)]
            with torch.no_grad():
                targets = slow(x)[:, : len(known)]
            loss = functional.cross_entropy(seen, units)
            loss = loss + weight * kl(targets, seen, temperature).mean()
            if ocar_lr is not None and step == 0:
                active = torch.arange(outputs.shape[1]) < len(known)
                kfac.update(outputs, active=active)
            loss.backward()
            if ocar_lr is not None:
                kfac.precondition_()
            with torch.no_grad():
                for p in model.parameters():
                    p -= (ocar_lr or 0.1) * p.grad
        follow(slow, model, max(0.3, 2.0 / (batch + 2.0)))
    return slow, known


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("method", ["er", "ocar"])
def test_distillation_is_that_of_a_loop_by_hand(method: str, temperature: float) -> None:
    curved = {"tau": 0.1, "ema": 0.3, "fisher": "exact", "replay_weight": "lambda"}
    learner = ocar.make_learner(
        method,
        normed(),
        lr=0.1,
        slow_rate=0.3,
        slow_warmup=2.0,
        distill_temperature=temperature,
        guard=None,
        **(curved if method == "ocar" else {}),
        **ALONE,
        **BOTH,
    )
    for x, y in stream():
        learner.learn(x, y)
    model = normed()
    rate = 0.1 if method == "ocar" else None
    slow, known = by_hand(model, weight=1.5, temperature=temperature, ocar_lr=rate)
    assert list(learner.classes) == known
    for name, tensor in model.state_dict().items():
        assert_close(learner.model.state_dict()[name], tensor, **EXACT)
        if tensor.is_floating_point():
            assert_close(learner.slow.values[name], slow.state_dict()[name], **EXACT)
    x = stream()[0][0]
    with torch.no_grad():
        fast, old = (m.eval()(x)[:, :3].softmax(1) for m in (model, slow))
    assert_close(learner.predict(x).exp(), (fast + old) / 2, **EXACT)
    assert_close(learner.predict(x, prediction="plain").softmax(1), fast, **EXACT)
    assert_close(learner.predict(x, prediction="slow").softmax(1), old, **EXACT)
    assert not torch.allclose(fast, old, rtol=1e-3)


# --- following ------------------------------------------------------------------------------------


def test_the_average_is_a_case_of_slow_weights() -> None:
    case = {"slow_rate": 0.2, "slow_warmup": 0, "slow_every": "step", "slow_statistics": "shared"}
    given = {"lr": 0.1, "memory": 20, **RAW}
    average = ocar.ER(normed(), prediction="average", average_rate=0.2, **given)
    slow = ocar.ER(normed(), prediction="slow", **case, **given)
    for x, y in stream():
        average.learn(x, y)
        slow.learn(x, y)
    assert average.slow.values.keys() == dict(normed().named_parameters()).keys()
    for name, tensor in average.slow.values.items():
        assert torch.equal(tensor, slow.slow.values[name]), name
        assert not torch.equal(tensor, average.model.get_parameter(name).detach())
    assert torch.equal(average.predict(x), slow.predict(x))


@pytest.mark.parametrize("every", ["batch", "step"])
def test_statistics_follow_unless_they_are_shared(every: str) -> None:
    own, shared = (
        ocar.ER(normed(), lr=0.1, prediction="slow", slow_every=every, slow_statistics=kind, **RAW)
        for kind in ("own", "shared")
    )
    for x, y in stream():
        own.learn(x, y)
        shared.learn(x, y)
    model = own.model.eval()
    parameters = {n: own.slow.values[n] for n, _ in model.named_parameters()}
    same = torch.func.functional_call(model, parameters, (x,))[:, :3]
    assert_close(shared.predict(x), same.detach(), **EXACT)
    assert not torch.allclose(own.predict(x), same, rtol=1e-3)
    assert own.slow.values.keys() - parameters == {"0.1.running_mean", "0.1.running_var"}


def test_new_units_start_with_their_own_weights() -> None:
    learner = ocar.ER(mlp(units=2), lr=0.1, **BOTH, **RAW)
    for labels in ([0, 1], [2, 3, 4]):
        for x, y in vectors(3, labels):
            learner.learn(x, y)
    assert learner.slow.values["2.weight"].shape == learner.model[2].weight.shape == (8, 8)
    both, fast, slow = (
        learner.predict(x, prediction=kind).double().softmax(1)
        for kind in ("both", "plain", "slow")
    )
    assert_close(both, (fast + slow) / 2, rtol=1e-5, atol=1e-6)


def test_layers_may_be_frozen_and_unfrozen_while_the_slow_weights_follow(tmp_path: Path) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    learner = ocar.ER(model, lr=0.1, memory=20, slow_rate=0.5, slow_warmup=0, **BOTH)
    first, second, third = vectors(3, [0, 1])
    learner.learn(*first)
    assert "0.weight" not in learner.slow.values
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    learner.learn(*second)
    after = model[0].weight.detach()
    assert_close(learner.slow.values["0.weight"], (before + after) / 2)
    model[0].requires_grad_(False)
    learner.forget(label=0)
    learner.save(tmp_path / "file")
    frozen = mlp()
    frozen[0].requires_grad_(False)
    for other in (learner, copy.deepcopy(learner), ocar.load(tmp_path / "file", frozen)):
        other.learn(*third)
        assert_close(other.slow.values["0.weight"], (before + 3 * after) / 4)


def test_a_restored_state_is_in_the_same_tensors() -> None:
    """Those that repeated predictions on a GPU copy from."""
    learner = ocar.make_learner("ocar-slow", normed(), memory=20, **RAW)
    for x, y in stream():
        learner.learn(x, y)
    tensors = learner.weights()
    learner.forget(label=1)
    for before, after in zip(tensors, learner.weights(), strict=True):
        assert {n: id(t) for n, t in before.items()} == {n: id(t) for n, t in after.items()}


def test_small_moves_of_a_model_in_bfloat16_are_not_rounded_away() -> None:
    model = mlp().bfloat16()
    given = {"lr": 0.1, "memory": 20, "slow_rate": 0.004, "slow_warmup": 0, **BOTH, **RAW}
    learner = ocar.ER(model, **given)
    followed = {name: p.detach().float() for name, p in model.named_parameters()}
    for x, y in vectors(40, [0, 1, 2, 3]):
        learner.learn(x, y)
        for name, p in model.named_parameters():
            followed[name] = followed[name].lerp(p.detach().float(), 0.004)
    assert_close({name: t.float() for name, t in learner.slow.values.items()}, followed)
    slow = mlp().bfloat16()
    slow.load_state_dict(followed)
    assert_close(learner.predict(x, prediction="slow"), slow(x.bfloat16()).detach())


def test_a_layer_with_two_names_keeps_its_weights() -> None:
    """Against the same network whose layers have one name each."""

    class TwoNames(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(*mlp())
            self.head = self[-1]

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(self[1](self[0](x)))
            return outputs

    given = {"lr": 0.1, "memory": 20, "classes": range(4), **BOTH}
    twice, once = ocar.ER(TwoNames(), **given), ocar.ER(mlp(), **given)
    for x, y in vectors(3, [0, 1, 2]):
        for learner in (twice, once):
            learner.learn(x, y)
        for kind in ("both", "plain", "slow"):
            one, other = (own.predict(x, prediction=kind) for own in (twice, once))
            assert torch.equal(one, other)


# --- what is distilled ----------------------------------------------------------------------------


def test_replayed_samples_alone_are_distilled() -> None:
    """Against the gradient by hand, in a step whose joint batch is known."""
    given = {"lr": 0.1, "memory": 4, "replay_batch": 4, "passes": 1, "guard": None, **RAW}
    learner = ocar.ER(normed(), distillation=1.5, distill_on="replayed", **given)
    (x0, y0), (x1, y1) = stream(2)
    plain, model = ocar.ER(normed(), **given), normed()
    ours, theirs = learner.learn(x0[:4], y0[:4]), plain.learn(x0[:4], y0[:4])
    assert torch.equal(ours.loss, theirs.loss)  # nothing is replayed, so nothing is distilled
    model.load_state_dict(learner.model.state_dict())
    slow = copy.deepcopy(model).eval()
    with torch.no_grad():  # another teacher, so that there is something to distil
        for name, p in slow.named_parameters():
            learner.slow.values[name].mul_(1.5)
            p.mul_(1.5)
    held = learner.memory.gather(learner.memory.slots)
    known = list(learner.classes)
    x, y = torch.cat([x1, held.x]), torch.cat([classes(y1, known), held.y])
    seen = model.train()(x)[:, : len(known)]
    with torch.no_grad():
        targets = slow(x)[:, : len(known)]
    loss = functional.cross_entropy(seen, y) + 1.5 * kl(targets, seen, 1.0)[10:].sum() / len(x)
    loss.backward()
    assert_close(learner.learn(x1, y1).loss, loss.detach(), **EXACT)
    for name, p in model.named_parameters():
        assert_close(learner.model.get_parameter(name), p - 0.1 * p.grad, **EXACT)


@pytest.mark.parametrize("method", ["er", "er-ace", "lpr", "mir"])
def test_the_teacher_sees_what_is_distilled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where new and replayed samples go through the model apart."""
    given = {"memory": 8, "replay_batch": 4, "passes": 1, "distillation": 1.0, **RAW}
    (x0, y0), (x1, y1) = stream(2)
    seen: list[int] = []
    teach = SlowWeights.teach

    def counted(slow: SlowWeights, x: Tensor) -> Tensor:
        seen.append(len(x))
        return teach(slow, x)

    monkeypatch.setattr(SlowWeights, "teach", counted)
    for which, rows in (("replayed", 4), ("all", 4 + len(x1))):
        learner = ocar.make_learner(method, normed(), lr=0.1, distill_on=which, **given)
        learner.learn(x0, y0)
        seen.clear()
        learner.learn(x1, y1)
        assert sum(seen) == rows


def test_mean_predictions() -> None:
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    expected = logits.softmax(-1).mean(0)
    assert_close(mean_prediction(logits, classes=3).softmax(-1), expected, **EXACT)
    assert_close(mean_prediction(logits, classes=None), (logits[0] + logits[1]) / 2, **EXACT)
    assert torch.equal(mean_prediction(logits[:1], classes=3), logits[0])


def test_a_regression_is_distilled_by_its_squared_error() -> None:
    given = {"likelihood": "gaussian", "memory_kind": "reservoir", "lr": 0.1, **ALONE}
    learner = ocar.ER(normed(2), slow_rate=0.5, slow_warmup=0, guard=None, **BOTH, **given)
    model = normed(2)
    slow = copy.deepcopy(model).eval()
    for x, _ in stream():
        y = x[:, :2]
        learner.learn(x, y)
        for _ in range(2):
            model.train().zero_grad()
            outputs = model(x)
            with torch.no_grad():
                gap = outputs - slow(x)
            loss = ((outputs - y).square().sum(1) / 2).mean()
            targets = (outputs - gap).detach()
            (loss + 1.5 * ((outputs - targets).square().sum(1) / 2).mean()).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        follow(slow, model, 0.5)
    for name, p in model.named_parameters():
        assert_close(learner.model.get_parameter(name), p, **EXACT)
    expected = (model.eval()(x) + slow(x)) / 2
    assert_close(learner.predict(x), expected.detach(), **EXACT)


def test_the_curvature_with_the_distillation_in_it() -> None:
    """1 + w times the Fisher, or only that of the replayed samples."""
    factors = {}
    for name, settings in {
        "none": {},
        "all": {"distill_curvature": True, "distill_on": "all"},
        "replayed": {"distill_curvature": True},
    }.items():
        learner = ocar.make_learner(
            "ocar-slow",
            normed(),
            lr=1e-9,
            distillation=2.0,
            memory=20,
            ema=1.0,
            fisher="exact",
            passes=1,
            tau=1.0,
            **settings,
            **RAW,
        )
        for x, y in stream(2):
            learner.learn(x, y)
        state = learner.transform.curvature.state_dict()
        factors[name] = next(t for n, t in state.items() if n.endswith("1.G"))
    assert_close(factors["all"], 3 * factors["none"], rtol=1e-6, atol=1e-12)
    rest = (factors["replayed"] - factors["none"]).diagonal(dim1=-2, dim2=-1)
    more = (factors["all"] - factors["replayed"]).diagonal(dim1=-2, dim2=-1)
    assert rest.sum() > 0
    assert more.sum() > 0


# --- a batch that is skipped, a file, a copy ------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("method", ["er", "ocar"])
@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_a_skipped_batch_moves_nothing(
    method: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Case(method).make(convnet(), slow_warmup=1, **BOTH)
    batches = [*pictures(2, [0, 1]), *pictures(2, [0, 2])]
    for x, y in batches[:3]:
        learner.learn(x, y)
    if not waits:
        never_wait(monkeypatch)
    before = {name: t.clone() for name, t in learner.slow.values.items()}
    head = learner.model[-1].weight
    handle = head.register_hook(lambda gradient: gradient * float("nan"))
    learner.learn(*batches[3])
    handle.remove()
    learner.check()
    assert learner.guarded.not_finite == 1
    assert_same(learner.slow.values, before)
    learner.learn(*batches[3])
    assert not torch.equal(learner.slow.values["0.weight"], before["0.weight"])


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_slow_weights_follow_the_weights_that_stand() -> None:
    """Also where the guard shortens the steps: with rate 1 they are the weights."""
    learner = Case("ocar").make(
        convnet(), guard=Guard(kl=1e-5), slow_rate=1.0, **{**BOTH, "distillation": 0.0}
    )
    for x, y in pictures(5, [0, 1]):
        learner.learn(x, y)
    assert learner.guarded.shortened > 0
    for name, p in learner.model.named_parameters():
        assert_close(learner.slow.values[name], p.detach())


@pytest.mark.parametrize("method", ["er", "ocar", "ocar-ace", "der++", "mir", "ocar-slow"])
def test_a_restored_learner_goes_on_to_the_bit(method: str, tmp_path: Path) -> None:
    learner = Case(method).make(convnet(), augment=ocar.CropFlip(padding=1), **BOTH)
    batches = [b for labels in ([0, 1], [2, 3, 4]) for b in pictures(4, labels)]
    for x, y in batches[:6]:
        learner.learn(x, y)
    assert_resumes(learner, batches[6:], convnet(), tmp_path)


def test_a_file_without_slow_weights_is_refused(tmp_path: Path) -> None:
    learner = ocar.ER(mlp(), lr=0.1, prediction="average", memory=20)
    for x, y in vectors(3, [0, 1]):
        learner.learn(x, y)
    tensors, values = learner.state()
    others = {n: t for n, t in tensors.items() if not n.startswith("slow.")}
    save_state(tmp_path / "file", others, values)
    with pytest.raises(CheckpointError, match="of another slow weights: missing"):
        ocar.load(tmp_path / "file", mlp())


def test_serving_answers_as_both(tmp_path: Path) -> None:
    learner = Case("ocar-slow").make(convnet())
    serving = ocar.Serving(learner)
    for labels in ([0, 1], [2, 3, 4]):
        for x, y in pictures(3, labels):
            learner.learn(x, y)
            assert_close(serving.predict(x, chunk=3).logits, learner.predict(x))
    assert not torch.allclose(learner.predict(x), learner.predict(x, prediction="plain"))


@pytest.mark.parametrize(
    ("given", "fast", "slow"),
    [
        ({}, ["plain"], ["mirrored"]),
        ({"mirror": "no"}, ["plain"], ["plain"]),
        ({"mirror": "too"}, ["plain", "mirrored"], ["plain", "mirrored"]),
    ],
)
def test_predictions_of_both_by_hand(
    given: dict[str, Any], fast: list[str], slow: list[str], tmp_path: Path
) -> None:
    """Which images each model sees; all views count alike."""
    learner = ocar.ER(
        convnet(), lr=0.1, slow_warmup=4, augment=ocar.CropFlip(padding=1), **BOTH, **given
    )
    serving = ocar.Serving(learner)
    for labels in ([0, 1, 2], [0, 3, 4]):
        for x, y in pictures(3, labels):
            learner.learn(x, y)

    def mean(views: list[str], kind: Any) -> Tensor:
        images = [x.flip(-1) if view == "mirrored" else x for view in views]
        return torch.stack([learner.predict(i, prediction=kind).softmax(1) for i in images]).mean(0)

    expected = (mean(fast, "plain") + mean(slow, "slow")) / 2
    assert_close(learner.predict(x).exp(), expected)
    assert_close(serving.predict(x).logits.exp(), expected)
    assert_close(learner.predict_repeatedly(x)(4, lambda z: z.exp()), expected[:4])
    learner.save(tmp_path / "file")
    assert_close(ocar.load(tmp_path / "file", convnet()).predict(x).exp(), expected)
    learner.export(tmp_path / "model.pt2", x=x)  # compares the predictions


def test_what_is_not_mirrored_in_learning_is_not_mirrored_in_predictions() -> None:
    never = Compose([HorizontalFlip(0.0), Grey()])
    for augment in (None, ocar.CropFlip(padding=1, flip=False), Grey(), never):
        assert ocar.ER(convnet(), lr=0.1, **BOTH, augment=augment).mirrors == "no"
    assert ocar.ER(convnet(), lr=0.1, **BOTH, augment=ocar.CropFlip(), mirror="no").mirrors == "no"
    for augment in (HorizontalFlip(), Compose([Grey(), HorizontalFlip(0.1)])):
        assert ocar.ER(convnet(), lr=0.1, **BOTH, augment=augment).mirrors == "instead"
    table = ocar.ER(mlp(), lr=0.1, **BOTH, mirror="instead")  # features have no left and right
    for x, y in vectors(3, [0, 1]):
        table.learn(x, y)
    parts = [table.predict(x, prediction=kind).softmax(1) for kind in ("plain", "slow")]
    assert_close(table.predict_proba(x), (parts[0] + parts[1]) / 2)


# --- logit adjustment -----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "share"), [("er", None), ("er", 0.7), ("ocar-slow", 0.5)])
def test_logits_are_adjusted_by_the_shares_of_the_classes(method: str, share: float | None) -> None:
    """Against a step by hand with four replayed samples; the predictions have no adjustment."""
    given = {"lr": 1e-3, "memory": 4, "replay_batch": 4, "passes": 1, "guard": None, **RAW}
    given |= {"closed_form_head": False}
    learner = ocar.make_learner(method, normed(), logit_adjustment=0.5, new_share=share, **given)
    (x0, y0), (x1, y1) = stream(2)
    assert set(y1[:5].tolist()) != set(y0[:8].tolist())
    learner.learn(x0[:8], y0[:8])
    held, known = learner.memory.gather(learner.memory.slots), list(learner.classes)
    y1, units = y1[:5], classes(y1[:5], known)
    x, y = torch.cat([x1[:5], held.x]), torch.cat([units, held.y])
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)
    if share is not None:
        weights[:5], weights[5:] = share / 5, (1 - share) / 4
    shares = torch.stack([weights[y == unit].sum() for unit in range(len(known))])
    with torch.no_grad():
        outputs = copy.deepcopy(learner.model).train()(x)[:, : len(known)]
        adjusted = outputs + 0.5 * shares.clamp_min(1e-3).log()
        loss = weights @ functional.cross_entropy(adjusted, y, reduction="none")
        if method == "ocar-slow":
            slow = torch.func.functional_call(
                copy.deepcopy(learner.model).eval(), learner.slow.values, (x,)
            )
            loss = loss + kl(slow[:, : len(known)], outputs, 1.0)[5:] @ weights[5:]  # replayed
    assert_close(learner.learn(x1[:5], y1).loss, loss, **EXACT)
    logits = learner.predict(x, prediction="plain")
    assert torch.equal(logits, learner.model.eval()(x)[:, : len(known)])


# --- what cannot be -------------------------------------------------------------------------------


def test_what_cannot_be_is_said() -> None:
    plain = ocar.ER(mlp(), lr=0.1)
    x, y = next(vectors(1, [0, 1]))
    plain.learn(x, y)
    with pytest.raises(
        InputError, match=r"Invalid prediction='slow'. Must be 'plain': the learner"
    ):
        plain.predict(x, prediction="slow")
    slow = ocar.ER(mlp(), lr=0.1, **BOTH)
    with pytest.raises(ConfigError, match=r"Invalid prediction='fast'\. Must be one of 'plain', "):
        slow.predict(x, prediction="fast")
    for method, reason in {"scr": "trains no head", "ocm": "rotated", "gdumb": "no step"}.items():
        with pytest.raises(ConfigError, match=rf"Invalid distillation=1\.0. Must be 0: .*{reason}"):
            ocar.make_learner(method, mlp(), lr=0.1, distillation=1.0)
    given = {"likelihood": "gaussian", "memory_kind": "reservoir"}
    with pytest.raises(ConfigError, match="Must be 0: a regression has no classes"):
        ocar.ER(mlp(), lr=0.1, logit_adjustment=1.0, **given)
    for wrong in ({"slow_rate": 0.0}, {"slow_warmup": -1.0}, {"distill_temperature": 0.0}):
        with pytest.raises(ConfigError, match=f"Invalid {next(iter(wrong))}="):
            ocar.ER(mlp(), lr=0.1, **wrong)
