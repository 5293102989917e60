"""What ``learner.export`` writes predicts what ``predict`` does, by torch.export and by ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import pictures
from torch import Tensor, nn
from toys import seeded

import ocar
from ocar import export
from ocar.errors import ConfigError, InputError, ModelError, NumericalError

X = torch.randn(10, 6, generator=torch.Generator().manual_seed(0)) * 5 + 3
Y = torch.arange(10) % 4
IDS = torch.randint(0, 9, (10, 5), generator=torch.Generator().manual_seed(1))
CLOSE = 1e-5


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(10, 2)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return self.head(torch.cat([self.embedding(ids).mean(1), numbers], dim=1))


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))


def er(model: nn.Module, x: Any, y: Tensor, **settings: Any) -> ocar.Learner:
    learner = ocar.ER(model, lr=0.1, memory=30, **settings)
    for _ in range(3):
        learner.learn(x, y)
    return learner


def resnet() -> tuple[ocar.Learner, Any]:
    x, y = next(iter(pictures(1, [0, 1, 2])))
    x = x.repeat_interleave(4, -1).repeat_interleave(4, -2)
    model = ocar.make_model("slim-resnet18", image_shape=tuple(x.shape[1:]), seed=0)
    normalize = ocar.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    return er(model, x, y, normalize=normalize, prediction="both"), x


MAKE: dict[str, Callable[[], tuple[ocar.Learner, Any]]] = {
    "standardised": lambda: (er(network(), X, Y), X),
    "slow": lambda: (er(network(), X, Y, prediction="slow"), X),
    "regression": lambda: (
        er(network(), X, X[:, :2] * 40, likelihood="gaussian", memory_kind="window"),
        X,
    ),
    "backbone": lambda: (er(ocar.LatentReplay(nn.Linear(6, 6), network()), X, Y), X),
    "two inputs": lambda: (
        er(seeded(TwoInputs), {"ids": IDS, "numbers": X}, Y),
        {"ids": IDS, "numbers": X},
    ),
    "a tuple": lambda: (er(seeded(TwoInputs), (IDS, X), Y), (IDS, X)),
    "images, both": resnet,
}


@pytest.mark.parametrize("kind", MAKE)
def test_torch_export_predicts_the_same(kind: str, tmp_path: Path) -> None:
    learner, x = MAKE[kind]()
    path = tmp_path / "model.pt2"
    before = learner.predict(x)
    assert learner.export(path, x=x) <= CLOSE
    learner.export(path, x=x)  # a second one replaces it
    found = {"ocar.json": ""}
    module = torch.export.load(path, extra_files=found).module()
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else (x,)
    for rows in (10, 7, 1):
        expected = learner.predict(take(x, rows))
        torch.testing.assert_close(module(*(part[:rows] for part in parts)), expected)
    said = json.loads(found["ocar.json"])
    assert (tuple(said["classes"]), said["batches"]) == (learner.classes, 3)
    assert torch.equal(learner.predict(x), before)


def take(x: Any, rows: int) -> Any:
    if isinstance(x, dict):
        return {name: part[:rows] for name, part in x.items()}
    return tuple(part[:rows] for part in x) if isinstance(x, tuple) else x[:rows]


@pytest.mark.parametrize("kind", MAKE)
def test_onnx_predicts_the_same(kind: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    learner, x = MAKE[kind]()
    path = tmp_path / "model.onnx"
    assert learner.export(path, x=x) <= 1e-3
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    names = {"two inputs": ["ids", "numbers"], "a tuple": ["x0", "x1"]}.get(kind, ["x"])
    assert [each.name for each in model.graph.input] == names
    said = {entry.key: entry.value for entry in model.metadata_props}["ocar.json"]
    assert tuple(json.loads(said)["classes"]) == learner.classes
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else (x,)
    feed = {name: part[:3].numpy() for name, part in zip(names, parts, strict=True)}
    (outputs,) = ReferenceEvaluator(model).run(["logits"], feed)
    torch.testing.assert_close(
        torch.from_numpy(np.array(outputs)), learner.predict(take(x, 3)), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_models_in_other_numbers(suffix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    learner = er(network().to(dtype), X, Y, prediction="both")
    assert learner.export(tmp_path / f"model{suffix}") <= 4 * torch.finfo(dtype).eps + CLOSE


def test_stored_samples_are_enough_to_trace(tmp_path: Path) -> None:
    learner, _ = MAKE["standardised"]()
    assert learner.export(tmp_path / "model.pt2") <= CLOSE


def test_a_file_that_predicts_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, x = MAKE["standardised"]()
    honest = export.Frozen.forward
    monkeypatch.setattr(export.Frozen, "forward", lambda self, *x: honest(self, *x) + 0.1)
    with pytest.raises(NumericalError, match=r"was not written: .* differ from the learner's by"):
        learner.export(tmp_path / "model.pt2", x=x)
    assert not list(tmp_path.iterdir())


class InnerStep(nn.Module):
    """A step of gradient descent in the forward pass: PyTorch traces it, and cannot save it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda weight: (x @ weight.mT).square().mean())
        weight = self.body.weight - slope(self.body.weight)
        return self.head(nn.functional.linear(x, weight))


def test_a_model_that_is_traced_and_cannot_be_saved_is_said(tmp_path: Path) -> None:
    learner = er(seeded(InnerStep), X, Y)
    with pytest.raises(ModelError, match=r"The model cannot be written as \.pt2: .*storage"):
        learner.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    learner, x = MAKE["standardised"]()
    with pytest.raises(ConfigError, match=r"model\.bin.*Must end in \.pt2 or \.onnx"):
        learner.export(tmp_path / "model.bin")
    with pytest.raises(InputError, match="at least 2 samples to trace with; given 1"):
        learner.export(tmp_path / "model.pt2", x=x[:1])
    behind, x = MAKE["backbone"]()
    with pytest.raises(InputError, match=r"holds no raw samples .* Give some: x="):
        behind.export(tmp_path / "model.pt2")
    gdumb = ocar.make_learner("gdumb", network(), memory=10, lr=0.1)
    gdumb.learn(X, Y)
    with pytest.raises(ModelError, match="predicts with more than a model"):
        gdumb.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
