"""Predictions of the same samples again and again."""

from __future__ import annotations

import copy

import pytest
import torch
from implementations import on_gpu
from tiny_resnet import TinyResNet
from tolerances import FLOAT16_NETWORK
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel import prediction, repeated_prediction
from ocar.accel.prediction import ParallelPrediction, RepeatedPrediction


class Normalize:
    """From bytes to numbers; counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        return x.float() / 255 - 0.5


def samples(n: int, *shape: int) -> Tensor:
    return torch.randint(256, (n, *shape), dtype=torch.uint8)


def same(outputs: Tensor) -> Tensor:
    return outputs


@pytest.mark.parametrize("n", [0, 1, 7, 10])
@pytest.mark.parametrize("chunk", [3, 100])
def test_the_first_samples_are_predicted(
    n: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "CHUNK", chunk)
    model, x, normalize = nn.Linear(4, 3), samples(10, 4), Normalize()
    predict = RepeatedPrediction(x, normalize=normalize, predict=model, device=torch.device("cpu"))
    expected = model(x[:n].float() / 255 - 0.5)
    assert_close(predict(n, same), expected)
    assert predict(n, lambda outputs: tuple(outputs.shape)) == (n, 3)
    predict.wait()
    predict.finish()


def test_samples_are_normalised_once() -> None:
    normalize = Normalize()
    predict = RepeatedPrediction(
        samples(10, 4), normalize=normalize, predict=nn.Linear(4, 3), device=torch.device("cpu")
    )
    assert normalize.calls == [1, 10]  # one to know the size
    for _ in range(3):
        predict(10, same)
    assert normalize.calls == [1, 10]


def test_many_samples_are_normalised_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalised, they are 160 bytes; more than this is not kept."""
    x, model = samples(10, 4), nn.Linear(4, 3)
    for limit, calls in ((160, [1, 10]), (159, [1, 7])):
        monkeypatch.setattr(prediction, "MOST_BYTES", limit)
        normalize = Normalize()
        predict = RepeatedPrediction(
            x, normalize=normalize, predict=model, device=torch.device("cpu")
        )
        assert_close(predict(7, same), model(x[:7].float() / 255 - 0.5))
        assert normalize.calls == calls


def test_predictions_follow_the_weights() -> None:
    model, x = nn.Linear(4, 3), samples(10, 4)
    predict = RepeatedPrediction(
        x, normalize=Normalize(), predict=model, device=torch.device("cpu")
    )
    before = predict(10, same)
    with torch.no_grad():
        model.weight.mul_(2)
    assert not torch.allclose(predict(10, same), before)


def test_on_a_cpu_nothing_runs_in_parallel() -> None:
    model = TinyResNet()
    weights = [model.state_dict()]
    found = repeated_prediction(
        samples(4, 3, 8, 8), normalize=Normalize(), predict=model, model=model, weights=weights,
        record=True,
    )  # fmt: skip
    assert type(found) is RepeatedPrediction


@on_gpu
@torch.no_grad()
@pytest.mark.parametrize("kind", ["folded", "whole"])
def test_on_a_gpu_a_copy_of_the_weights_predicts(kind: str) -> None:
    model: nn.Module = TinyResNet() if kind == "folded" else nn.Sequential(nn.Flatten())
    if kind == "whole":
        model.append(nn.Linear(3 * 64, 6))
    model = model.cuda().eval()
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    still = {name: tensor.clone() for name, tensor in weights.items()}
    first = copy.deepcopy(model)
    x = samples(10, 3, 8, 8)
    options = {"normalize": Normalize(), "predict": model, "model": model}
    options["weights"] = [weights, still]
    assert type(repeated_prediction(x, **options, record=False)) is RepeatedPrediction
    assert type(repeated_prediction(x, **{**options, "weights": None}, record=True)) is (
        RepeatedPrediction
    )
    found = repeated_prediction(x, **options, record=True)
    assert type(found) is ParallelPrediction
    for n in (10, 3, 10, 3, 10, 3):
        prepared = x[:n].cuda().float() / 255 - 0.5
        expected = copy.deepcopy(model)(prepared), first(prepared)
        outputs = found(n, torch.clone)
        found.wait()
        assert len(outputs) == 2
        for ours, theirs in zip(outputs, expected, strict=True):
            assert float((ours - theirs).norm() / theirs.norm()) < FLOAT16_NETWORK
        for weight in model.parameters():
            weight.mul_(1.1)
    found.finish()
