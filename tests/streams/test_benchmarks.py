"""Benchmarks by name: the protocol's numbers, on data of the right shape and on the real files."""

from __future__ import annotations

import gc
import os
import weakref
from collections import Counter
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch

import ocar
from ocar.augment import CropFlip, Normalize
from ocar.datasets import Arrays
from ocar.errors import ConfigError
from ocar.events import Finished
from ocar.models import MODELS, make_model
from ocar.streams import BENCHMARKS, Benchmark, ClassIncremental, get_benchmark, make_stream
from ocar.streams.benchmarks import stream_over


def real_root(inside: str) -> Path:
    root = os.environ.get("OCAR_DATA")
    if not root or not (Path(root) / inside).exists():
        pytest.skip(f"OCAR_DATA is {root!r}: no {inside} under it")
    return Path(root)


IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_benchmarks_hold_the_protocol() -> None:
    cifar, tiny = BENCHMARKS["split-cifar100"], BENCHMARKS["split-tinyimagenet"]
    assert (cifar.tasks, cifar.memory, cifar.passes, cifar.batch_size) == (20, 2000, 3, 10)
    assert (tiny.tasks, tiny.memory, tiny.passes, tiny.batch_size) == (20, 4000, 9, 10)
    assert (cifar.n_new, tiny.n_new) == (5, 10)
    assert cifar.model == tiny.model == "slim-resnet18"
    assert (cifar.image_shape, tiny.image_shape) == ((3, 32, 32), (3, 64, 64))
    assert cifar.normalize == Normalize((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    assert tiny.normalize == Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert cifar.augment == CropFlip(padding=4, flip=True)
    assert tiny.augment == CropFlip(padding=8, flip=True)
    for name in ("split-mnist", "split-digits"):
        benchmark = BENCHMARKS[name]
        assert (benchmark.tasks, benchmark.memory, benchmark.passes) == (5, 100, 3)
        assert (benchmark.model, benchmark.n_new) == ("mlp", 2)
        assert benchmark.normalize == Normalize((0.0,), (1.0,))
        assert benchmark.augment is None
    clear, pacs = BENCHMARKS["clear"], BENCHMARKS["pacs"]
    assert (clear.model, clear.image_shape) == ("resnet18", (3, 224, 224))
    assert (clear.tasks, clear.classes, clear.passes, clear.memory) == (10, 11, 10, 2000)
    assert (pacs.model, pacs.image_shape) == ("slim-resnet18", (3, 64, 64))
    assert (pacs.tasks, pacs.classes, pacs.passes, pacs.memory) == (4, 7, 3, 500)
    assert clear.normalize == pacs.normalize == IMAGENET
    for benchmark in (clear, pacs):
        assert (benchmark.kind, benchmark.increments) == ("domain-incremental", "domains")
        assert benchmark.n_new is None
    convex = BENCHMARKS["convex"]
    assert (convex.model, convex.passes, convex.tasks) == ("linear", 1, 10)
    assert (convex.batch_size, convex.replay_size, convex.validation) == (10, 10, 0.0)


def test_every_benchmark_is_in_order() -> None:
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
        assert benchmark.model in MODELS
        assert benchmark.likelihood == ("gaussian" if name == "convex" else "categorical")
        assert (benchmark.increments == "classes") == (benchmark.kind == "class-incremental")
        with pytest.raises(FrozenInstanceError):
            benchmark.memory = 1  # type: ignore[misc]
        settings = benchmark.learner_settings()
        assert settings["memory"] == benchmark.memory
        assert settings["replay_batch"] == 10
        learner = ocar.make_learner("er", model_of(benchmark), lr=0.01, **settings)
        assert learner.settings.likelihood == benchmark.likelihood
        assert learner.settings.augment == benchmark.augment
    with pytest.raises(ConfigError, match=r"Unknown benchmark 'x'. There are split-digits"):
        get_benchmark("x")
    with pytest.raises(ConfigError, match="either a loader of data or a maker of the stream"):
        replace(BENCHMARKS["convex"], loader=lambda root: made_up(BENCHMARKS["pacs"]))


def test_a_benchmark_of_ones_own_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = BENCHMARKS["split-digits"]
    own = replace(digits, name="own", loader=lambda root: made_up(digits), tasks=2)
    monkeypatch.setitem(BENCHMARKS, "own", own)
    assert make_stream("own").tasks == 2
    made = replace(own, loader=None, maker=lambda seed, **rest: stream_over(made_up(digits), own))
    monkeypatch.setitem(BENCHMARKS, "own", made)
    assert make_stream("own", seed=3).tasks == 2


def model_of(benchmark: Benchmark) -> torch.nn.Module:
    return make_model(**benchmark.model_settings(), seed=0)


GROUPS = tuple(f"group {i}" for i in range(10))  # of classes


def made_up(benchmark: Benchmark, *, per_class: int = 6) -> Arrays:
    """Random images of a benchmark's shape, classes and domains; one of 4 pixels where large."""
    channels, height, width = benchmark.image_shape
    side = min(height, 16), min(width, 16)
    domains = benchmark.domains
    if benchmark.kind == "domain-incremental" and benchmark.views is None and domains is None:
        domains = tuple(f"domain {i}" for i in range(benchmark.tasks))
    copies = len(domains) if domains else 1
    n = per_class * benchmark.classes * copies
    if benchmark.samples:
        n = benchmark.samples * benchmark.tasks
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        shape = (count, channels, *side)
        x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        place = torch.arange(count)
        y = place % benchmark.classes
        domain = place // benchmark.classes % copies if domains else None
        if benchmark.by_domain:
            domain = y * len(GROUPS) // benchmark.classes
        return x, y, domain

    (x, y, domain), (x_test, y_test, domain_test) = part(n), part(2 * benchmark.classes * copies)
    return Arrays(
        name=benchmark.name,
        x_train=x,
        y_train=y,
        x_test=x_test,
        y_test=y_test,
        domain_train=domain,
        domain_test=domain_test,
        domains=GROUPS if benchmark.by_domain else tuple(sorted(domains)) if domains else (),
    )


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "convex"])
def test_each_makes_its_stream(name: str) -> None:
    benchmark = BENCHMARKS[name]
    arrays = made_up(benchmark)
    stream = stream_over(arrays, benchmark, seed=1)
    assert stream.tasks == benchmark.tasks
    assert stream.batch_size == benchmark.batch_size
    labels = [set(stream.training(task)[1].tolist()) for task in range(stream.tasks)]
    assert set().union(*labels) == set(range(benchmark.classes))
    if benchmark.kind == "class-incremental":
        assert all(len(mine) == benchmark.n_new for mine in labels)
    else:
        assert all(mine == set(range(benchmark.classes)) for mine in labels)
    size = len(stream.training(0)[1]) + len(stream.validation(0)[1])
    assert len(stream.validation(0)[1]) == max(1, round(benchmark.validation * size))
    iid = stream_over(arrays, benchmark, seed=1, iid=True)
    assert iid.tasks == 1
    total = sum(
        len(stream.training(t)[1]) + len(stream.validation(t)[1]) for t in range(stream.tasks)
    )
    assert len(iid.training(0)[1]) + len(iid.validation(0)[1]) == total
    blurry = stream_over(arrays, benchmark, seed=1, blurry=0.3)
    assert not torch.equal(blurry.training(0)[0], stream.training(0)[0])


def test_pacs_goes_from_photographs_to_sketches() -> None:
    benchmark = BENCHMARKS["pacs"]
    arrays = made_up(benchmark)
    assert arrays.domains == ("art_painting", "cartoon", "photo", "sketch")
    seeds = [stream_over(arrays, benchmark, seed=seed) for seed in (0, 1)]
    for task, domain in enumerate((2, 0, 1, 3)):
        found = {image.numpy().tobytes() for image in seeds[0].training(task)[0]}
        there = arrays.x_train[arrays.domain_train == domain]
        assert found < {image.numpy().tobytes() for image in there}
        held_out = [stream.validation(task)[0] for stream in seeds]
        assert torch.equal(*held_out)  # the split is the same for every seed
        assert not torch.equal(*(stream.training(task)[0] for stream in seeds))


def test_each_view_of_mnist_is_its_own() -> None:
    benchmark = BENCHMARKS["rotated-mnist"]
    assert benchmark.views is not None
    angles = [view.degrees for view in benchmark.views(0)]  # type: ignore[attr-defined]
    assert angles == [9.0 * task for task in range(20)]
    benchmark = BENCHMARKS["permuted-mnist"]
    assert benchmark.views is not None
    x = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    views = [bytes(view(x).flatten()) for seed in (0, 1) for view in benchmark.views(seed)]
    assert len(set(views)) == 40


@pytest.mark.parametrize("iid", [False, True])
def test_split_digits(iid: bool) -> None:
    pytest.importorskip("sklearn")
    stream = make_stream("split-digits", seed=1, iid=iid)
    assert isinstance(stream, ClassIncremental)
    benchmark = BENCHMARKS["split-digits"]
    assert stream.arrays.x_train.shape[1:] == benchmark.image_shape
    assert stream.classes == benchmark.classes
    assert stream.tasks == (1 if iid else 5)
    trained = sum(len(batch.y) for batch in stream)
    held_out = sum(len(stream.validation(task)[1]) for task in range(stream.tasks))
    assert trained + held_out == len(stream.arrays.y_train)


def test_convex_can_be_learned() -> None:
    benchmark = BENCHMARKS["convex"]
    stream = make_stream("convex", seed=3)
    learner = ocar.make_learner(
        "er", model_of(benchmark), lr=0.05, **benchmark.learner_settings(), seed=3
    )
    *_, finished = ocar.evaluate(learner, stream, every=100)
    assert isinstance(finished, Finished)
    assert finished.summary.l_p is not None
    assert finished.summary.l_s is not None
    silent = sum(float(batch.y.square().mean()) for batch in make_stream("convex", seed=3))
    assert finished.summary.l_p < 0.5 * silent  # far better than always answering 0
    assert finished.summary.acc is finished.summary.aaa is finished.summary.wc_acc is None


# --- the real files ---


@pytest.mark.data
def test_split_cifar100_follows_the_protocol() -> None:
    root = real_root("cifar-100-python/train")
    stream = make_stream("split-cifar100", seed=0, data_root=root)
    assert isinstance(stream, ClassIncremental)
    counts = Counter((batch.complete, len(batch.y)) for batch in stream)
    assert counts == {(True, 10): 4740, (False, 5): 20}
    assert all(stream.validation(task)[0].shape == (125, 3, 32, 32) for task in range(20))
    assert all(stream.test(task)[0].shape == (500, 3, 32, 32) for task in range(20))
    assert [list(stream.task_classes(task)) for task in (0, 19)] == [
        [0, 1, 2, 3, 4],
        [95, 96, 97, 98, 99],
    ]
    iid = ClassIncremental(stream.arrays, tasks=20, seed=0, iid=True)
    assert len(iid) == 4750
    assert len(iid.validation(0)[1]) == 2500


@pytest.mark.data
def test_split_mnist() -> None:
    stream = make_stream("split-mnist", seed=0, data_root=real_root("MNIST/raw"))
    assert stream.tasks == 5
    total = sum(len(batch.y) for batch in stream)
    assert total + sum(len(stream.validation(task)[1]) for task in range(5)) == 60000
    assert sum(len(stream.test(task)[1]) for task in range(5)) == 10000


@pytest.mark.data
def test_superclass_cifar100_has_a_class_of_each_superclass_a_task() -> None:
    root = real_root("cifar-100-python/train")
    stream = make_stream("superclass-cifar100", data_root=root)
    assert (stream.tasks, len(stream)) == (5, 4750)
    for task in range(5):
        _, y = stream.test(task)
        assert torch.equal(torch.bincount(y), torch.full((20,), 100))


@pytest.mark.data
def test_pacs_is_whole() -> None:
    stream = make_stream("pacs", data_root=real_root("PACS"))
    parts = [
        [len(part(task)[1]) for part in (stream.training, stream.validation, stream.test)]
        for task in range(4)
    ]
    assert [sum(sizes) for sizes in parts] == [1670, 2048, 2344, 3929]
    assert all(0.19 < sizes[2] / sum(sizes) < 0.21 for sizes in parts)
    assert all(0.045 < sizes[1] / (sizes[0] + sizes[1]) < 0.055 for sizes in parts)


def test_models_have_room_for_all_classes() -> None:
    for benchmark in BENCHMARKS.values():
        outputs = model_of(benchmark).head.out_features
        assert outputs >= benchmark.classes
        assert outputs == 1 if benchmark.kind == "regression" else outputs >= 16


def test_streams_on_one_device_share_the_data_as_long_as_there_is_one():
    one, two = (make_stream("split-digits", seed=seed, device="meta") for seed in (0, 1))
    assert one.data is two.data
    data = weakref.ref(one.data)
    del one, two
    gc.collect()
    assert data() is None
    one, two = (make_stream("split-digits", seed=seed) for seed in (0, 1))
    assert one.data is not two.data  # a host may have other files by then
