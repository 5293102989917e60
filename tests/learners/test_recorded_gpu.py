"""Steps recorded as CUDA graphs do what eager steps do, in double precision."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch
from gpu_toys import batches, network
from torch import Tensor, nn

import ocar
from ocar.accel.layout import is_channels_last
from ocar.errors import NumericalError
from ocar.guard import Guard
from ocar.learner import Learner, Report
from ocar.methods.registry import make_settings
from ocar.models.resnet import SlimResNet18

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

DEFAULT = Guard()
OCAR = {"lr": 1e-3, "tau_step": 1e-6, "ema": 0.2}
METHODS = {
    "er": ("er", {"lr": 0.05}),
    "er-average": ("er", {"lr": 0.05, "prediction": "average", "average_rate": 0.1}),
    "er-slow": ("er", {"lr": 0.05, "prediction": "slow", "slow_every": "step"}),
    "er-both": ("er", {"lr": 0.05, "prediction": "both", "slow_rate": 0.1}),
    "er-distilled": ("er", {"lr": 0.05, "distillation": 1.0, "distill_on": "replayed"}),
    "ocar-slow": ("ocar-slow", OCAR | {"slow_rate": 0.1, "slow_warmup": 4.0}),
    "ocar-slow-curved": ("ocar-slow", OCAR | {"distill_curvature": True}),
    "ocar-ace-slow": ("ocar-ace", OCAR | {"prediction": "both", "distillation": 1.0}),
    "er-adjusted": ("er", {"lr": 0.05, "logit_adjustment": 0.5}),
    "er-kept": ("er", {"lr": 0.05, "replay": "kept"}),
    "der++": ("der++", {"lr": 0.05}),
    "der++-own": ("der++", {"lr": 0.05, "labels_from": "own", "distance": "norm"}),
    "ocar-der++": ("ocar-der++", OCAR),
    "agem": ("agem", {"lr": 0.05, "reference": 12}),
    "lpr": ("lpr", {"lr": 0.05, "refresh_every": 6}),
    "ewc": ("ewc", {"lr": 0.05, "strength": 0.1}),
    "ewc-sum": ("ewc", {"lr": 0.05, "strength": 0.1, "accumulation": "sum", "anchor_every": 5}),
    "ngd": ("ngd", {"lr": 1e-3, "damping": 1e-3, "ema": 0.2}),
    "ocar": ("ocar", OCAR),
    "ocar-chosen": ("ocar", {}),
    "ocar-window": ("ocar", {"memory_kind": "window"}),
    "ocar-forgets": ("ocar", {"memory_kind": "exponential"}),
    "ocar-exact": ("ocar", OCAR | {"fisher": "exact"}),
    "ocar-every": ("ocar", OCAR | {"fisher_passes": "every"}),
    "ocar-own": ("ocar", OCAR | {"fisher_forward": "own"}),
    "ocar-authors": ("ocar", OCAR | {"factor_scale": "outputs", "head_size": "labels"}),
    "ocar-both": ("ocar", OCAR | {"weighting": "both", "norm_layers": True}),
    "ocar-top": ("ocar", OCAR | {"fisher": "top(2)"}),
    "ocar-sampled": ("ocar", OCAR | {"fisher": "sampled(2)"}),
}


def make(kind: str, *, record: bool, guard: Guard | None = DEFAULT) -> Learner:
    name, settings = METHODS[kind]
    own, transform = make_settings(
        name, memory=40, replay_batch=5, augment=ocar.CropFlip(), **settings
    )
    return Learner(network(), own, transform=transform, record=record, guard=guard)


def state(learner: Learner) -> dict[str, Tensor]:
    tensors, _ = learner.state()
    return {name: t.double().cpu() for name, t in tensors.items() if t.is_floating_point()}


def read(report: Report) -> dict[str, float]:
    return {name: float(value) for name, value in report.values.items()}


def assert_same(one: Learner, other: Learner, *, rtol: float = 1e-6) -> None:
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        error = (tensor - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-12)
        assert error < rtol, f"{name}: {error}"
    assert one.steps == other.steps


@pytest.mark.parametrize("kind", METHODS)
def test_recorded_is_eager(kind: str) -> None:
    recorded, eager = make(kind, record=True), make(kind, record=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Going on without CUDA graphs")
        for x, y in batches(30):
            ours, theirs = recorded.learn(x, y), eager.learn(x, y)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-7, atol=1e-9)
            assert read(ours) == pytest.approx(read(theirs), rel=1e-6)
    assert recorded._steps.graph._recorded
    assert not eager._steps.graph._recorded
    assert_same(recorded, eager)


@pytest.mark.parametrize("kind", ["er", "ocar"])
def test_recorded_is_eager_behind_a_frozen_backbone(kind: str) -> None:
    name, settings = METHODS[kind]
    own, transform = make_settings(
        name, memory=40, replay_batch=5, augment=ocar.CropFlip(), **settings
    )
    recorded, eager = (
        Learner(
            ocar.LatentReplay.at(network(), "blocks.5"), own, transform=transform, record=record
        )
        for record in (True, False)
    )
    data = batches(30)
    for x, y in data:
        recorded.learn(x, y)
        eager.learn(x, y)
    assert recorded._steps.graph._recorded
    assert_same(recorded, eager)
    asked = torch.cat([x for x, _ in data])
    repeated = recorded.predict_repeatedly(asked)
    found = repeated(len(asked), torch.clone)
    repeated.wait()
    torch.testing.assert_close(found, recorded.predict(asked), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["er", "er-slow", "agem"])
def test_a_recorded_learner_follows_what_is_frozen_and_thawed(kind: str) -> None:
    recorded, eager = make(kind, record=True), make(kind, record=False)
    for index, (x, y) in enumerate(batches(30)):
        for learner in (recorded, eager):
            first = next(learner.model.parameters())
            first.requires_grad_(index // 10 != 1)
            learner.learn(x, y)
    assert recorded._steps.graph._recorded
    assert_same(recorded, eager)


class Words(nn.Module):
    """The mean embedding of the words that a mask leaves, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(20, 8), nn.Linear(3, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        mean = (self.words(ids) * mask.unsqueeze(-1)).mean(1)
        return self.head(torch.tanh(mean + self.numbers(numbers)))


@pytest.mark.parametrize("kind", ["er", "der++", "ocar", "ocar-der++"])
def test_recorded_is_eager_on_dictionaries(kind: str) -> None:
    name, given = METHODS[kind]
    own, transform = make_settings(name, memory=40, replay_batch=5, standardize=True, **given)
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Words().to("cuda", torch.float64)
    recorded, eager = (
        Learner(copy.deepcopy(model), own, transform=transform, record=record)
        for record in (True, False)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Going on without CUDA graphs")
        for _ in range(20):
            ids = torch.randint(20, (6, 5), generator=generator, dtype=torch.int32)
            numbers = torch.randn(6, 3, generator=generator, dtype=torch.float64)
            x = {"ids": ids, "mask": ids % 3 > 0, "numbers": numbers}
            ours, theirs = (each.learn(x, ids[:, 0].long() % 4) for each in (recorded, eager))
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-7, atol=1e-9)
    assert recorded._steps.graph._recorded
    assert_same(recorded, eager)
    found = recorded.predict_repeatedly(x)
    answers = found(6, lambda outputs: outputs.clone())
    found.wait()
    torch.testing.assert_close(answers, recorded.predict(x))


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
@pytest.mark.parametrize("fisher", ["sketched(2)", "sampled(2)"])
def test_a_recorded_student_t_regression_is_eager(fisher: str) -> None:
    """The scale of the residuals is changed in place, and a guard measures the divergence."""
    own, transform = make_settings(
        "ocar", memory=40, memory_kind="reservoir", likelihood="student-t", fisher=fisher
    )
    recorded, eager = (
        Learner(network(), own, transform=transform, record=record, guard=Guard(gaussian_kl=1.0))
        for record in (True, False)
    )
    generator = torch.Generator().manual_seed(2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Going on without CUDA graphs")
        for x, _ in batches(20):
            y = torch.randn(len(x), 4, generator=generator, dtype=torch.float64)
            ours, theirs = recorded.learn(x, y), eager.learn(x, y)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-7, atol=1e-9)
    assert recorded._steps.graph._recorded
    assert_same(recorded, eager)


@pytest.mark.parametrize(
    ("kind", "slow"), [("er", {"lr": 1e-4}), ("ocar", {"tau": 10.0, "max_cost": None})]
)
def test_recorded_is_eager_in_single_precision(kind: str, slow: dict[str, float | None]) -> None:
    """With channels-last kernels, and our kernels for BatchNorm and inverses.

    The steps are small, so that differences in rounding stay small too.
    """
    name, settings = METHODS[kind]
    own, transform = make_settings(name, memory=40, replay_batch=5, **(settings | slow))
    learners = []
    for record in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = SlimResNet18(classes=16).to("cuda", torch.float32)
        learners.append(Learner(model, own, transform=transform, record=record))
    recorded, eager = learners
    assert any(is_channels_last(p) for p in recorded.model.parameters())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for x, y in batches(5):
            ours, theirs = recorded.learn(x, y), eager.learn(x, y)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-2, atol=1e-3)
    assert recorded._steps.graph._recorded
    for name, weight in recorded.model.named_parameters():
        other = eager.model.get_parameter(name)
        assert (weight - other).norm() < 5e-2 * other.norm(), name
        assert weight.stride() == other.stride(), name


def test_gdumb_trains_recorded_as_eagerly() -> None:
    own, _ = make_settings(
        "gdumb", memory=40, epochs=3, train_batch=8, lr=0.05, augment=ocar.CropFlip()
    )
    recorded, eager = (Learner(network(), own, record=record) for record in (True, False))
    questions = batches(1)[0][0]
    for index, (x, y) in enumerate(batches(20)):
        recorded.learn(x, y)
        eager.learn(x, y)
        if index in (6, 13, 19):  # the head has grown between them
            ours, theirs = recorded.predict(questions), eager.predict(questions)
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    assert recorded.objective._training._recorded
    assert not eager.objective._training._recorded


def test_a_restored_learner_goes_on_the_same() -> None:
    whole, first = make("ocar", record=True), make("ocar", record=True)
    stream = batches(24)
    for x, y in stream:
        whole.learn(x, y)
    for x, y in stream[:14]:
        first.learn(x, y)
    second = make("ocar", record=True)
    second.load_state(*first.state())
    for x, y in stream[14:]:
        second.learn(x, y)
    assert_same(second, whole)


def test_a_learner_that_gave_its_memory_back_goes_on_the_same() -> None:
    learner, whole = make("ocar", record=True), make("ocar", record=True)
    for index, (x, y) in enumerate(batches(16)):
        if index == 9:
            held = torch.cuda.memory_reserved()
            learner.release()
            assert torch.cuda.memory_reserved() < held
        learner.learn(x, y)
        whole.learn(x, y)
    assert_same(learner, whole)


def test_a_batch_of_another_size_in_the_middle() -> None:
    recorded, eager = make("ocar", record=True), make("ocar", record=False)
    for index, (x, y) in enumerate(batches(16)):
        n = 3 if index % 5 == 4 else 6
        recorded.learn(x[:n], y[:n])
        eager.learn(x[:n], y[:n])
    assert_same(recorded, eager)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [({"damping_kind": "exact"}, 1), ({"curvature": "dense", "fisher": "exact"}, 0)],
)
def test_what_cannot_be_recorded_runs_eagerly_and_says_so(
    settings: dict[str, object], warned: int
) -> None:
    def learner(record: bool) -> Learner:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4))
        own, transform = make_settings("ocar", replay_batch=5, **OCAR, **settings)
        return Learner(model.to("cuda", torch.float64), own, transform=transform, record=record)

    recorded, eager = learner(True), learner(False)
    generator = torch.Generator().manual_seed(0)
    said = []
    for _ in range(8):
        x = torch.rand(6, 3, 2, 2, generator=generator)
        y = torch.randint(0, 4, (6,), generator=generator)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            recorded.learn(x, y)
        said += [str(w.message) for w in caught if "without CUDA graphs" in str(w.message)]
        eager.learn(x, y)
    assert len(said) == warned
    assert_same(recorded, eager)
    torch.rand(1, device="cuda")  # the device's own generator can still be drawn from


@pytest.mark.parametrize("kind", ["er", "er-average", "er-slow", "ocar-slow"])
def test_repeated_prediction_is_predict(kind: str) -> None:
    learner = make(kind, record=True)
    held_out = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    found, wanted = [], []
    repeated = None
    for index, (x, y) in enumerate(batches(20)):
        learner.learn(x, y)
        repeated = repeated or learner.predict_repeatedly(held_out)
        n = 50 if index % 2 else 20
        found.append(repeated(n, Tensor.clone))
        wanted.append(learner.predict(held_out[:n]))
    repeated.wait()
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_a_closed_form_head_is_solved_for_in_a_graph_as_eagerly() -> None:
    recorded, eager = make("ocar-slow", record=True), make("ocar-slow", record=False)
    held_out = batches(1)[0][0]
    for index, (x, y) in enumerate(batches(24)):
        for learner in (recorded, eager):
            learner.learn(x, y)
        if index == 16:  # other tensors
            recorded.load_state(*recorded.state())
        ours, theirs = recorded.predict(held_out), eager.predict(held_out)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert recorded.closed_form._graph._recorded
    assert not eager.closed_form._graph._recorded


def test_repeated_prediction_in_single_precision() -> None:
    """There kernels of their own add, rectify and convolve at once; with TF32 by default."""
    own, _ = make_settings("er", lr=0.05, memory=40, replay_batch=5)
    learner = Learner(network(torch.float32), own)
    held_out = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    for x, y in batches(8):
        learner.learn(x, y)
    repeated = learner.predict_repeatedly(held_out)
    ours = [repeated(50, Tensor.clone) for _ in range(3)]
    repeated.wait()
    for logits in ours:
        torch.testing.assert_close(logits, learner.predict(held_out), rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", ["ocar", "ocar-slow"])
def test_learning_does_not_wait_for_the_device(kind: str) -> None:
    learner = make(kind, record=True)
    held_out = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    stream = batches(12)
    repeated = None
    for index, (x, y) in enumerate(stream):
        if index == 11:  # its shapes have been recorded
            torch.cuda.set_sync_debug_mode("error")
        try:
            learner.learn(x, y)
            repeated = repeated or learner.predict_repeatedly(held_out)
            repeated(50, Tensor.clone)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_curvature_that_is_not_finite_is_reported_late() -> None:
    learner = make("ocar", record=True, guard=None)
    stream = batches(4)
    for x, y in stream:
        learner.learn(x, y)
    learner.check()
    with torch.no_grad():
        next(learner.model.parameters()).mul_(float("inf"))
    learner.learn(*stream[3])
    with pytest.raises(NumericalError, match="not finite"):
        learner.check()


@pytest.mark.parametrize("kind", ["er", "ocar", "ewc", "lpr", "ocar-slow"])
@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_the_guard_backs_off_in_a_graph_as_it_does_eagerly(kind: str) -> None:
    stream = [(x.double() / 255, y) for x, y in batches(16)]
    for index, scale in ((6, 1e6), (11, 1e6), (12, float("inf"))):
        x, y = stream[index]
        stream[index] = (x * scale, y) if scale < 1e9 else (torch.full_like(x, 1e200), y)
    learners = [make(kind, record=record, guard=Guard(kl=1e-3)) for record in (True, False)]
    for learner in learners:
        for x, y in stream:
            learner.learn(x, y)
        learner.check()
    recorded, eager = learners
    assert recorded.guarded.out_of_scale == eager.guarded.out_of_scale == 3
    assert recorded.guarded.shortened == eager.guarded.shortened
    assert (recorded.guarded.shortened > 0) == (kind != "er")
    for one, other in zip(recorded.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    held = recorded.memory.gather(recorded.memory.slots)
    assert held.x.abs().max() <= 1
    assert torch.equal(held.y.cpu(), recorded.memory.labels)


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_what_is_not_finite_is_taken_back_in_a_graph() -> None:
    learner = make("ocar", record=True)
    stream = batches(8)
    for x, y in stream[:7]:
        learner.learn(x, y)
    head = list(learner.model.parameters())[-1]
    before = [p.detach().clone() for p in learner.model.parameters()]
    head.grad = None
    handle = head.register_hook(lambda gradient: gradient * float("nan"))
    learner._steps.graph.forget()  # the hook is to be in the graph
    for _ in range(3):
        learner.learn(*stream[7])
    handle.remove()
    assert learner.guarded.not_finite == 3
    for old, new in zip(before, learner.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_side_by_side_in_threads_is_one_after_another() -> None:
    """Each run on a stream of its own, as ``ocar run`` does with several seeds."""

    def learn(learner: Learner, stream: list[tuple[Tensor, Tensor]]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for x, y in stream:
                learner.learn(x, y)
            torch.cuda.current_stream().synchronize()

    stream = batches(24)
    alone = [make(kind, record=True) for kind in ("ocar", "er", "ocar-every")]
    together = copy.copy([make(kind, record=True) for kind in ("ocar", "er", "ocar-every")])
    torch.cuda.synchronize()
    for learner in alone:
        learn(learner, stream)
    threads = [threading.Thread(target=learn, args=(learner, stream)) for learner in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other)
