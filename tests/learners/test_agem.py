"""A-GEM against the projection written out, one parameter vector at a time."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, convnet, images, mlp, seeded, vectors, weights

import ocar
from ocar.errors import ConfigError
from ocar.learner import Learner
from ocar.methods.agem import AGEMLearnerSettings, AGEMSettings
from ocar.methods.ocar import OCARSettings


def make(model: nn.Module, **settings) -> Learner:
    return ocar.make_learner("agem", model, **{"lr": 0.1, "memory": 40, **RAW, **settings})


def gradient(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> Tensor:
    loss = nn.functional.cross_entropy(model(x)[:, :classes], y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


def remembering(seed: int) -> tuple[Learner, Tensor, Tensor]:
    """A learner with twelve samples of two classes in memory, and a batch of a third class."""
    learner = make(mlp().double(), passes=1, reference=12)
    ((x, y),) = vectors(1, [0, 1], size=12)
    learner.remember(x.double(), y)
    ((new, _),) = vectors(1, [2], seed=seed, size=6)
    label = seed % 3  # a wrong label gives a gradient that hurts the memory
    return learner, new.double(), torch.full((6,), label)


def test_a_step_is_the_projected_gradient() -> None:
    """All of the memory is the reference, so that it can be written out."""
    projected = 0
    for seed in range(12):
        learner, x, y = remembering(seed)
        before = copy.deepcopy(learner.model)
        held = learner.memory.gather(torch.arange(12))
        learner.learn(x, y)
        classes = len(learner.classes)
        units = torch.tensor([learner.classes.index(label) for label in y.tolist()])
        g = gradient(before, x, units, classes)
        r = gradient(before, held.x, held.y, classes)
        if g @ r < 0:
            g = g - (g @ r) / (r @ r) * r
            projected += 1
            assert abs(float(g @ r)) < 1e-12
        assert_close(weights(learner.model) - weights(before), -0.1 * g, **EXACT)
    assert 0 < projected < 12  # both cases were there


def test_the_gradient_never_hurts_the_reference() -> None:
    """The product is not negative, with BatchNorm and references that are a part of the memory."""
    learner = make(convnet().double(), reference=8, lr=0.3)
    transform = learner.transform
    rewrite, products = transform.rewrite_, []

    def checked() -> None:
        reference = list(transform._reference)
        before = sum(float((p.grad * r).sum()) for p, r in reference)
        rewrite()
        after = sum(float((p.grad * r).sum()) for p, r in reference)
        products.append((before, after))

    transform.rewrite_ = checked
    for labels in ([0, 1], [2, 3]):
        for x, y in images(6, labels):
            learner.learn(x, y)
    assert min(before for before, _ in products) < 0
    assert min(after for _, after in products) > -1e-10
    assert all(after == before for before, after in products if before >= 0)


def test_without_a_memory_it_is_sgd_on_the_new_samples() -> None:
    projected, plain = mlp().double(), mlp().double()
    ((x, y),) = vectors(1, [0, 1])
    make(projected, passes=3).learn(x.double(), y)
    ocar.ER(plain, lr=0.1, passes=3, **RAW).learn(x.double(), y)
    assert torch.equal(weights(projected), weights(plain))


def test_the_reference_goes_through_the_model_first() -> None:
    sizes = []
    model = convnet()
    learner = make(model, reference=7, passes=2)
    for i, (x, y) in enumerate(images(2, [0, 1])):
        if i == 1:
            model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
        learner.learn(x, y)
    assert sizes == [7, 10, 7, 10]


def test_a_parameter_that_the_new_samples_do_not_reach() -> None:
    """Missing gradients count as zero, on either side."""

    class TwoWays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.head = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 2)

        def forward(self, x):
            way = self.one if len(x) == 12 else self.other
            return self.head(way(x))

    learner = make(seeded(TwoWays).double(), passes=1, reference=12)
    ((x, y),) = vectors(1, [0, 1], size=12)
    learner.remember(x.double(), y)
    held, before = learner.memory.gather(torch.arange(12)), copy.deepcopy(learner.model)
    wrong = 1 - torch.tensor([learner.classes.index(label) for label in y[:6].tolist()])
    learner.learn(x[:6].double(), torch.tensor(learner.classes)[wrong])

    def loss(x, y):
        return nn.functional.cross_entropy(before(x), y)

    def flat(loss):
        found = torch.autograd.grad(loss, list(before.parameters()), allow_unused=True)
        both = zip(found, before.parameters(), strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in both])

    g, r = flat(loss(x[:6].double(), wrong)), flat(loss(held.x, held.y))
    assert g @ r < 0
    step = -0.1 * (g - (g @ r) / (r @ r) * r)
    assert_close(weights(learner.model) - weights(before), step, **EXACT)


def test_a_regression_is_projected_too() -> None:
    model = seeded(lambda: nn.Linear(6, 1)).double()
    settings = {"likelihood": "gaussian", "memory_kind": "reservoir", "reference": 10, "passes": 1}
    learner = make(model, **settings)
    ((x, _),) = vectors(1, [0, 1])
    x = x.double()
    learner.remember(x, 5 * x.sum(1, keepdim=True))
    before = copy.deepcopy(model)
    learner.learn(x, -5 * x.sum(1, keepdim=True))

    def gradient_of(y):
        loss = (before(x) - y).square().sum(1).mean() / 2
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, before.parameters())])

    g, r = gradient_of(-5 * x.sum(1, keepdim=True)), gradient_of(5 * x.sum(1, keepdim=True))
    assert g @ r < 0
    step = -0.1 * (g - (g @ r) / (r @ r) * r)
    assert_close(weights(model) - weights(before), step, **EXACT)


def test_what_does_not_go_together_is_refused_with_the_reason() -> None:
    settings = AGEMLearnerSettings(lr=0.1)
    for transform in (None, OCARSettings(tau_step=0.0, ema=0.5)):
        with pytest.raises(ConfigError, match=r"only its own projection protects what was learned"):
            Learner(mlp(), settings, transform=transform)
    with pytest.raises(ConfigError, match=r"Use the method 'agem' as it is"):
        ocar.make_learner("agem", mlp(), transform="lpr", lr=0.1)
    with pytest.raises(ConfigError, match=r"a loss on replayed samples .* Use the method 'agem'"):
        Learner(mlp(), ocar.methods.er.ERSettings(lr=0.1), transform=AGEMSettings())
    with pytest.raises(ConfigError, match=r"Invalid reference=0\. Must be at least 1\."):
        AGEMLearnerSettings(lr=0.1, reference=0)
