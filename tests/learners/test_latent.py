"""A frozen backbone in front of a learner: features are stored, the rest learns.

The oracle is a learner of the rest that is fed with features computed by hand.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import ALONE, Case
from torch import Tensor, nn
from torch.testing import assert_close
from toys import assert_same, convnet, everything, images, mlp, never_wait, seeded, vectors
from twins import assert_resumes

import ocar
from ocar import LatentReplay
from ocar.augment import HorizontalFlip
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError
from ocar.guard import GuardWarning
from ocar.learner import Learner
from ocar.models import SlimResNet18
from ocar.models.cut import cut
from ocar.serving import Serving

METHODS = {
    "er": {"lr": 0.05},
    "ocar": {"lr": 0.02, "tau_step": 1e-4, "ema": 0.1, "increments": "domains"},
}
LABELS = ([0, 1], [2, 3], [0, 4], [5, 1])


def backbone() -> nn.Module:
    """With BatchNorm and Dropout, which are frozen too; from 8 × 8 to 4 × 3 × 3."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)
        ),
        seed=3,
    )


def rest(units: int = 2) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, units))
    )


def learner_of(method: str, model: nn.Module, **settings: object) -> Learner:
    return ocar.make_learner(method, model, memory=30, **{**METHODS[method], **settings})


def stream(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    return [batch for labels in LABELS for batch in images(3, labels, seed=seed)]


def by_hand(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    with torch.no_grad():
        features = backbone().eval()(x.float() / 255)
    return features if dtype is None else features.to(dtype)


# --- the same as with features computed by hand ---------------------------------------------------


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("method", METHODS)
def test_it_learns_as_the_rest_does_from_features(method: str, dtype: torch.dtype | None) -> None:
    latent = learner_of(method, LatentReplay(backbone(), rest(), dtype=dtype))
    plain = learner_of(method, rest())
    for x, y in stream():
        latent.learn(x, y)
        plain.learn(by_hand(x, dtype), y)
    asked, _ = next(images(1, [0, 1, 2, 3, 4, 5], seed=50, size=20))
    assert_close(latent.predict(asked), plain.predict(by_hand(asked, dtype)), rtol=0, atol=0)
    assert_same(latent.memory.state_dict(), plain.memory.state_dict())
    assert_same(latent.model.state_dict(), plain.model.state_dict())
    assert latent.memory.gather(latent.memory.slots).x.dtype == (dtype or torch.float32)


def test_repeated_predictions_and_serving_are_those_of_predict() -> None:
    learner = learner_of("ocar", LatentReplay(backbone(), rest()))
    asked, _ = next(images(1, [0, 1, 2, 3, 4, 5], seed=50, size=20))
    learner.learn(*stream()[0])
    repeated, serving = learner.predict_repeatedly(asked), Serving(learner)
    for x, y in stream()[1:]:
        learner.learn(x, y)
        expected = learner.predict(asked)
        assert_close(repeated(20, torch.clone), expected, rtol=0, atol=0)
        assert_close(serving.predict(asked).logits, expected, rtol=0, atol=0)


def test_features_need_not_be_standardised() -> None:
    settings = {"standardize": False, "normalize": ocar.Normalize(mean=(0.5,), std=(0.25,))}
    latent = learner_of("er", LatentReplay(backbone(), rest()), **settings)
    plain = learner_of("er", rest(), standardize=False)
    asked, _ = next(images(1, [0, 1], seed=50, size=20))

    def features(x: Tensor) -> Tensor:
        with torch.no_grad():
            return backbone().eval()((x.float() / 255 - 0.5) / 0.25)

    for x, y in stream():
        latent.learn(x, y)
        plain.learn(features(x), y)
    assert not latent.intake.statistics()
    assert_close(latent.predict(asked), plain.predict(features(asked)), rtol=0, atol=0)
    repeated = latent.predict_repeatedly(asked)(20, torch.clone)
    assert_close(repeated, latent.predict(asked), rtol=0, atol=0)


def test_images_are_augmented_once_before_the_backbone() -> None:
    given: list[Tensor] = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            given.append(x)
            return x.clone()

    head = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    plain = learner_of("er", copy.deepcopy(head), passes=3)
    model = LatentReplay(Watched(), head)
    learner = learner_of("er", model, augment=HorizontalFlip(), passes=3)
    x, y = stream()[0]
    learner.learn(x, y)
    (seen,) = given
    flipped = [not torch.equal(a, b) for a, b in zip(seen, x.float() / 255, strict=True)]
    assert 0 < sum(flipped) < len(flipped)
    stored = learner.memory.gather(learner.memory.slots).x
    assert_same({"x": stored.sort(0).values}, {"x": seen.sort(0).values})
    plain.learn(seen, y)
    assert_same(dict(head.state_dict()), dict(plain.model.state_dict()))


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.method)
def test_every_method_learns_from_features(case: Case) -> None:
    learner = case.make(LatentReplay(backbone(), rest(4)))
    for x, y in stream():
        learner.learn(x, y)
    assert learner.guarded.skipped == 0
    stored = learner.memory.gather(learner.memory.slots).x
    assert stored.shape[1:] == (4, 3, 3)
    assert torch.isfinite(learner.predict(stream()[0][0])).all()


# --- the backbone stays as it was ----------------------------------------------------------------


def test_the_backbone_is_frozen_whatever_its_mode() -> None:
    model = LatentReplay(backbone(), rest())
    before = copy.deepcopy(model.backbone.state_dict())
    learner = learner_of("er", model)
    asked = stream(seed=5)[0][0]
    expected = model.features(asked.float())
    for x, y in stream():
        model.train()
        model.backbone.train()
        learner.learn(x, y)
    assert_same(dict(model.backbone.state_dict()), dict(before))
    assert_close(model.features(asked.float()), expected, rtol=0, atol=0)
    assert not any(p.requires_grad for p in model.backbone.parameters())
    assert not any(m.training for m in model.train().backbone.modules())


# --- undo, guard ---------------------------------------------------------------------------------


def floats(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    return [(x.float() / 255, y) for x, y in stream(seed)]


def broken(learner: Learner, x: Tensor, y: Tensor) -> None:
    raising = learner.latent.backbone.register_forward_hook(_fail)
    with pytest.raises(InputError, match=r"backbone cannot take samples of shape \(1, 8, 8\)"):
        learner.learn(x, y)
    raising.remove()


def _fail(module: nn.Module, inputs: object, output: Tensor) -> None:
    raise RuntimeError("no")


def huge(learner: Learner, x: Tensor, y: Tensor) -> None:
    with pytest.warns(GuardWarning):
        learner.learn(1e9 * x, y)
    assert learner.guarded.skipped == 1


def beyond_float16(learner: Learner, x: Tensor, y: Tensor) -> None:
    with pytest.raises(InputError, match="float16 is too small"):
        learner.learn(1e30 * x, y)


@pytest.mark.parametrize("bad", [broken, huge, beyond_float16])
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_batch_is_undone(method: str, bad: Callable[[Learner, Tensor, Tensor], None]) -> None:
    dtype = torch.float16 if bad is beyond_float16 else None
    settings = {"augment": HorizontalFlip()}  # its generator is undone too
    one, other = (
        learner_of(method, LatentReplay(backbone(), rest(), dtype=dtype), **settings)
        for _ in range(2)
    )
    for index, (x, y) in enumerate(floats()):
        if index == 5:
            bad(one, *next((x, y + 7) for x, y in floats(seed=9)))
        one.learn(x, y)
        other.learn(x, y)
    (tensors, values), (expected, others) = one.state(), other.state()
    tries = [n for n in tensors if n.startswith("guard.")] if bad is huge else []
    assert_same(*({n: t for n, t in s.items() if n not in tries} for s in (tensors, expected)))
    assert values == others | ({"batches": others["batches"] + 1} if bad is huge else {})


def test_a_batch_is_skipped_where_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: features beyond float16 are left to the guard."""
    never_wait(monkeypatch)
    learner = learner_of("ocar", LatentReplay(backbone(), rest(8), dtype=torch.float16))
    batches = floats()
    for x, y in batches[:5]:
        learner.learn(x, y)
    kept = ("model.", "memory.columns.", "standardize.")
    before = {n: t for n, t in everything(learner).items() if n.startswith(kept)}
    x, y = batches[5]
    learner.learn(1e30 * x, y)
    with pytest.warns(GuardWarning):
        after = everything(learner)
    assert learner.guarded.skipped == 1
    assert_same({name: after[name] for name in before}, before)


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_or_copied_learner_goes_on_exactly(method: str, tmp_path: Path) -> None:
    def model() -> LatentReplay:
        return LatentReplay(backbone(), rest(), dtype=torch.float16)

    learner = learner_of(method, model(), augment=HorizontalFlip())
    batches = stream()
    for x, y in batches[:6]:
        learner.learn(x, y)
    pickled = pickle.loads(pickle.dumps(learner))
    assert_resumes(learner, batches[6:], model(), tmp_path)
    for x, y in batches[6:]:
        pickled.learn(x, y)
    assert_same(everything(pickled), everything(learner))
    assert not [name for name in learner.state()[0] if "backbone" in name]


def other_weights() -> nn.Module:
    changed = backbone()
    changed[0].weight.data[0, 0, 0, 0] += 1
    return changed


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: LatentReplay(other_weights(), rest()), "features of another backbone"),
        (lambda: LatentReplay(backbone(), rest(), dtype=torch.float16), "another backbone"),
        (rest, "features of a frozen backbone"),
    ],
    ids=["weights", "dtype", "none"],
)
def test_another_backbone_is_refused(
    model: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    learner = learner_of("er", LatentReplay(backbone(), rest()))
    learner.learn(*stream()[0])
    learner.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match=message):
        ocar.load(tmp_path / "file", model())


def test_a_checkpoint_without_features_is_refused(tmp_path: Path) -> None:
    learner = learner_of("er", rest())
    learner.learn(by_hand(stream()[0][0], None), stream()[0][1])
    learner.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match="raw samples and no features"):
        ocar.load(tmp_path / "file", LatentReplay(backbone(), rest()))


# --- what is given -------------------------------------------------------------------------------


def test_a_sample_takes_the_bytes_that_the_memory_takes() -> None:
    model = LatentReplay(backbone(), rest(), dtype=torch.float16)
    x, y = stream()[0]
    assert model.sample_bytes(x[0]) == 4 * 3 * 3 * 2
    learner = learner_of("er", model)
    learner.learn(x, y)
    assert learner.memory.memory_usage() == 30 * (4 * 3 * 3 * 2 + 8)


def test_wrong_parts_are_refused() -> None:
    shared = nn.Linear(6, 6)
    with pytest.raises(ModelError, match=r"the rest also uses its 0\.weight, 0\.bias"):
        LatentReplay(nn.Sequential(shared), nn.Sequential(shared, nn.Linear(6, 2)))
    with pytest.raises(ConfigError, match=r"dtype=torch\.int8"):
        LatentReplay(backbone(), rest(), dtype=torch.int8)
    wrong = {
        r"one tensor \(10, \.\.\.\) for 10 samples; given \(1,": lambda x: x.flatten()[None],
        r"one tensor .* given <class 'tuple'>": lambda x: (x, x),
        r"floating point; given torch\.int64": lambda x: x.long(),
    }
    for message, function in wrong.items():
        part = nn.Identity()
        part.forward = function
        with pytest.raises(ModelError, match=message):
            learner_of("er", LatentReplay(part, rest())).learn(*stream()[0])


# --- cuts ----------------------------------------------------------------------------------------


class Reshaped(nn.Module):
    """Reads the batch size from its input, as many networks do, in different ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3))
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "size":
            n = x.size(0)
        elif self.way == "shape":
            n = x.shape[0]
        else:
            n, _, _, _ = x.shape
        return self.head(self.body(x).view(n, -1))


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (lambda: convnet(), "3"),
        (lambda: Reshaped("size"), "body.1"),
        (lambda: Reshaped("shape"), "body.1"),
        (lambda: Reshaped("unpacked"), "body"),
        (lambda: SlimResNet18(32, channels=1, width=3), "blocks.4"),
        (lambda: SlimResNet18(32, channels=1, width=3), "pool"),
    ],
)
def test_a_cut_network_computes_the_same(make: Callable[[], nn.Module], layer: str) -> None:
    model = seeded(make).eval()
    side = 32 if isinstance(model, SlimResNet18) else 8
    front, rest = cut(model, layer)
    x = torch.randn(5, 1, side, side, generator=torch.Generator().manual_seed(0))
    found: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(
        lambda module, inputs, output: found.append(output.clone())
    )
    expected = model(x).clone()
    handle.remove()
    assert_close(front(x), found[0], rtol=0, atol=0)
    features = front(x)
    assert_close(rest(features), expected, rtol=0, atol=0)
    assert_close(features, found[0], rtol=0, atol=0)  # nothing was changed in place
    names = [{n for n, _ in part.named_parameters()} for part in (front, rest)]
    assert not names[0] & names[1]
    assert names[0] | names[1] == {n for n, _ in model.named_parameters()}


def test_a_cut_network_learns_as_one_that_is_frozen_by_hand() -> None:
    """Without standardisation: a whole model that is frozen to the layer is the oracle."""
    whole, model = Reshaped("size"), Reshaped("size")
    whole.load_state_dict(seeded(lambda: Reshaped("size")).state_dict())
    model.load_state_dict(whole.state_dict())
    whole.body[0].requires_grad_(False)
    learner = learner_of("ocar", whole.double(), standardize=False)
    latent = LatentReplay.at(model.double(), "body.1")
    other = learner_of("ocar", latent, standardize=False)
    for x, y in stream():
        learner.learn(x, y)
        other.learn(x, y)
    asked = stream(seed=5)[0][0]
    assert_close(other.predict(asked), learner.predict(asked), rtol=1e-9, atol=1e-9)
    assert other.model.head is model.head


def test_a_wrong_layer_names_those_that_there_are() -> None:
    model = SlimResNet18(32, width=3)
    with pytest.raises(ModelError, match="Must be one of stem, blocks, pool"):
        LatentReplay.at(model, "layer4")
    with pytest.raises(ModelError, match=r"one of blocks\.0, .*blocks\.7, or a layer inside"):
        LatentReplay.at(model, "blocks.8")
    with pytest.raises(ModelError, match="'pool' has no layers inside"):
        LatentReplay.at(model, "pool.0")


class Awkward(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.unused = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        z = self.second(self.first(x))
        if self.way == "skip":
            z = z + x
        elif self.way == "twice":
            z = self.second(z)
        elif self.way == "training":
            z = nn.functional.dropout(z, training=self.training)
        elif self.way == "branch" and z.sum() > 0:
            z = -z
        return self.head(z)


@pytest.mark.parametrize(
    ("way", "layer", "message"),
    [
        ("skip", "second", "what follows also uses the network's input .* by 'add'"),
        ("twice", "second", "called 2 times"),
        ("plain", "unused", "called 0 times"),
        ("training", "first", r"reads self\.training"),
        ("branch", "first", "cannot follow"),
    ],
)
def test_a_network_that_cannot_be_cut_is_refused(way: str, layer: str, message: str) -> None:
    model = Awkward(way)
    with pytest.raises(ModelError, match=message):
        LatentReplay.at(model, layer)
    assert all(module.training for module in model.modules())


def test_regression_on_features() -> None:
    front = seeded(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh()), seed=1)
    given = {"likelihood": "gaussian", "memory_kind": "reservoir"}
    latent = learner_of("ocar", LatentReplay(front, mlp(2, inputs=12)), **given)
    plain = learner_of("ocar", mlp(2, inputs=12), **given)
    for x, _ in vectors(6, [0, 1]):
        latent.learn(x, x[:, :2])
        plain.learn(front(x).detach(), x[:, :2])
    assert_close(latent.predict(x), plain.predict(front(x)), rtol=0, atol=0)
