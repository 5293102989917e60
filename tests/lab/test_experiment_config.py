"""A configuration checks itself, and its folder's name stands for all that decides the numbers."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import small

from ocar.augment import Normalize
from ocar.errors import ConfigError
from ocar.methods.ocar import OCARSettings
from ocar.methods.registry import METHODS
from ocar.streams.benchmarks import BENCHMARKS
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.config import base_settings
from ocar_lab.runs.reading import read_changed

RESULTS = Path(__file__).parents[2] / "results"

OTHER: dict[str, Any] = {
    "method": "ocar",
    "transform": "ocar",
    "settings": {"lr": 0.123},
    "iid": True,
    "blurry": 0.1,
    "every": 7,
    "online": True,
    "probe": False,
    "max_tasks": 3,
    "max_batches": 11,
    "guard": False,
}
"""Another value of each field that decides the numbers, beside the seed."""

ELSEWHERE: dict[str, Any] = {
    "threads": 2,
    "record": False,
    "deterministic": True,
    "checkpoint_every": 5,
    "data_root": Path("elsewhere"),
    "device": "auto",
    "plugins": ("json",),
}
"""Another value of each field that does not."""


def test_every_field_either_decides_the_numbers_or_does_not() -> None:
    known = {*OTHER, *ELSEWHERE, "seed", "benchmark", "defaults", "splits"}
    assert {field.name for field in fields(RunConfig)} == known


@pytest.mark.parametrize("name", OTHER)
def test_another_setting_is_another_folder(name: str) -> None:
    assert replace(small(), **{name: OTHER[name]}).hash() != small().hash()


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_does_not_decide_the_numbers_is_not_in_the_name(name: str) -> None:
    assert replace(small(), **{name: ELSEWHERE[name]}).folder() == small().folder()


@given(st.floats(1e-6, 1), st.floats(1e-6, 1))
def test_two_learning_rates_never_share_a_folder(one: float, other: float) -> None:
    names = {small(settings={"lr": lr}).hash() for lr in (one, other)}
    assert len(names) == len({one, other})


EARLIER_PRESET = {"factor_scale": "none", "head_size": "classes"}


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("split-digits/er", {}),
        ("split-digits/ocar", {}),
        ("split-digits/ocar", {"defaults": True}),
        ("convex/ngd", {}),
        ("convex/ocar", {}),
        ("convex/ocar", {"defaults": True}),
        ("split-cifar100/er", {"device": "cuda", "splits": "own"}),
        ("split-cifar100/ocar", {"device": "cuda", "settings": EARLIER_PRESET}),
        ("split-cifar100/ocar-slow", {"device": "cuda"}),
    ],
)
def test_a_stored_result_is_found_again(folder: str, options: dict[str, Any]) -> None:
    """A setting that is added must not make other runs of those that exist."""
    benchmark, method = folder.split("/")
    config = RunConfig(benchmark=benchmark, method=method, **{"device": "cpu", **options})
    assert (RESULTS / f"{folder}-{config.hash()}.json").exists()


@pytest.mark.parametrize(
    ("method", "differing"),
    [
        ("er", {}),
        ("er-ace", {"replay": "fresh"}),
        ("ocar", EARLIER_PRESET),
        ("ocar-ace", {"replay": "fresh", **EARLIER_PRESET}),
        ("ocar-slow", {"replay_batch": 10}),
    ],
)
def test_a_run_by_an_earlier_preset_is_named_by_what_it_ran_with(
    method: str, differing: dict[str, Any]
) -> None:
    config = RunConfig(benchmark="split-cifar100", method=method, settings=differing)
    document = {"config": config.identity(), "changed": {}}
    assert read_changed(document) == config.changed() == differing
    now = replace(config, settings={})
    assert read_changed({"config": now.identity(), "changed": {}}) == now.changed() == {}
    gone = {"config": now.identity(), "changed": {"slow_share": None}}
    assert read_changed(gone) == {}, "a setting that is gone, off"
    asked = replace(now, defaults=True, settings={"lr": 0.1})
    named = {"config": asked.identity(), "changed": asked.changed()}
    assert read_changed(named) == asked.changed()


def test_the_defaults_of_a_method_are_another_folder_than_its_preset() -> None:
    defaults = small(method="ocar", defaults=True)
    own, transform = defaults.resolve()
    assert own.lr is None
    assert own.memory == BENCHMARKS["split-digits"].memory
    assert transform == OCARSettings()
    assert defaults.hash() != small(method="ocar").hash()
    with pytest.raises(ConfigError, match=r"er has no default for lr\. Give --lr 0\.05, or"):
        small(method="er", defaults=True)


def test_other_splits_are_another_folder() -> None:
    published, own = (
        RunConfig(benchmark="split-cifar100", method="er", splits=splits, device="cpu")
        for splits in (None, "own")
    )
    assert published.hash() == replace(published, splits="published").hash() != own.hash()
    assert (published.identity()["splits"], published.changed()) == ("published", {})
    assert "splits" not in own.identity()  # as in runs of earlier versions
    assert own.changed() == {"splits": "own"}
    assert small(splits="own").hash() == small().hash()
    with pytest.raises(ConfigError, match="Invalid splits='published' for split-digits"):
        small(splits="published")


def test_the_seed_is_a_folder_below() -> None:
    assert small(seed=4).folder().parent == small(seed=0).folder().parent
    assert small(seed=4).folder().name == "seed-4"
    assert small().folder().parts[:2] == ("split-digits", "er")


def test_a_default_that_is_given_changes_nothing() -> None:
    explicit = small(settings={"passes": 3, "memory": 100, "replay": "fresh"})
    assert explicit.hash() == small().hash()
    assert explicit.changed() == small().changed() == {"max_tasks": 2}


def test_a_method_with_a_transform_goes_by_its_registered_name() -> None:
    combined = small(method="er", transform="ocar")
    assert (combined.name, combined.hash()) == ("ocar", small(method="ocar").hash())


def test_iid_is_a_row_of_its_own() -> None:
    assert small(iid=True).label == "er-iid"


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_benchmark_fixes_fits_the_method(benchmark: str, method: str) -> None:
    kinds = (METHODS[method].settings, METHODS[method].transform)
    needed = [f.name for kind in kinds if kind is not None for f in fields(kind) if _is_needed(f)]
    try:
        given = dict.fromkeys(["lr", *needed], 0.1)
        config = RunConfig(benchmark=benchmark, method=method, settings=given)
    except ConfigError as error:
        assert benchmark == "convex"
        assert "Invalid likelihood='gaussian'" in str(error)  # noqa: PT017
        return
    fixed = base_settings(benchmark, method)
    assert fixed["memory"] == BENCHMARKS[benchmark].memory
    assert config.identity()["settings"]["memory"] == fixed["memory"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"benchmark": "split-nothing"}, "Unknown benchmark 'split-nothing'"),
        ({"method": "magic"}, "Unknown method 'magic'. There are er, "),
        ({"transform": "magic"}, "Unknown transform 'magic'"),
        ({"seed": -1}, "Invalid seed=-1. Must be from 0 to 2"),
        ({"seed": 2**63}, "Invalid seed=9223372036854775808. Must be from 0 to"),
        ({"every": 0}, "Invalid every=0"),
        ({"blurry": 1.5}, "Invalid blurry=1.5"),
        ({"threads": 0}, "Invalid threads=0"),
        ({"device": "tpu"}, "Invalid device='tpu'"),
        ({"settings": {"lr": -1.0}}, "Invalid lr=-1.0"),
        ({"settings": {"lrr": 1.0}}, "no setting lrr"),
        ({"settings": {"seed": 1}}, "seed. It is a field of the configuration"),
        ({"settings": {"normalize": abs}}, "normalize. A run folder holds no functions"),
    ],
)
def test_a_wrong_value_is_refused_at_once(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        small(**values)


def test_a_normalisation_that_can_be_written_down_is_taken() -> None:
    config = small(settings={"normalize": Normalize(mean=(0.5,), std=(0.5,))})
    assert config.changed()["normalize"] == {"kind": "Normalize", "mean": [0.5], "std": [0.5]}
