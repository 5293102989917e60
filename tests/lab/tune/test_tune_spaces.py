"""Search spaces: of settings that there are, in the paper's ranges, around what was published."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ocar.errors import ConfigError
from ocar.methods.presets import PRESETS
from ocar.methods.registry import METHODS, TRANSFORMS
from ocar.methods.spaces import LOSSES, REGRESSION, TRANSFORM_SPACES
from ocar_lab.tune import Choice, Range, TuneConfig, search_space
from ocar_lab.tune.pruning import TRIALS, is_hopeless

CONVEX = ("er", "ewc", "ngd", "ocar")


def ends(part: Range | Choice) -> list[Any]:
    if isinstance(part, Choice):
        return list(part.values)
    return [int(part.low), int(part.high)] if part.whole else [part.low, part.high]


def contains(part: Range | Choice, value: Any) -> bool:
    return value in part.values if isinstance(part, Choice) else part.low <= value <= part.high


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_a_space_is_one_of_the_method(method: str) -> None:
    """Both ends of every range make a configuration, which refuses what it does not know."""
    config = TuneConfig(benchmark="split-digits", method=method, device="cpu")
    assert "lr" in config.space
    for name, part in config.space.items():
        for value in ends(part):
            made = config.run_config({**config.example(), name: value})
            own, transform = made.resolve()
            assert getattr(own if hasattr(own, name) else transform, name) == value


@pytest.mark.parametrize("method", CONVEX)
def test_regression_has_spaces_too(method: str) -> None:
    config = TuneConfig(benchmark="convex", method=method, device="cpu")
    for name, part in config.space.items():
        for value in ends(part):
            config.run_config({**config.example(), name: value}).resolve()


def test_the_tables_are_of_what_there_is() -> None:
    """Every transform has a space, no table is of settings that nobody uses, no name is wrong."""
    assert TRANSFORM_SPACES.keys() == set(TRANSFORMS.values())
    assert LOSSES.keys() <= {method.settings for method in METHODS.values()}
    assert REGRESSION.keys() <= TRANSFORM_SPACES.keys()
    for table in (LOSSES, TRANSFORM_SPACES, REGRESSION):
        for kind, space in table.items():
            assert space.keys() <= {field.name for field in fields(kind)}, kind


def test_the_papers_ranges() -> None:
    lr = Range(low=1e-5, high=0.1, log=True)
    own = {
        "tau_step": Range(low=1e-10, high=1e-5, log=True),
        "ema": Range(low=1e-4, high=1, log=True),
    }
    der = Range(low=1e-9, high=10, log=True)
    ace = {"alpha": Range(low=0, high=1)}
    for benchmark in ("split-cifar100", "clear"):
        assert search_space(benchmark, "er") == {"lr": lr}
        assert search_space(benchmark, "ocar") == {"lr": lr, **own}
        assert search_space(benchmark, "er-ace") == {"lr": lr, **ace}
        assert search_space(benchmark, "ocar-ace") == {"lr": lr, **ace, **own}
        assert search_space(benchmark, "er-ace", "ocar") == {"lr": lr, **ace, **own}
        assert search_space(benchmark, "der++") == {"lr": lr, "alpha": der, "beta": der}


@pytest.mark.parametrize("benchmark", ["split-cifar100", "split-tinyimagenet", "convex"])
def test_what_was_selected_lies_in_the_space(benchmark: str) -> None:
    for method, selected in PRESETS[benchmark].items():
        for name, part in search_space(benchmark, method).items():
            if name in selected:
                assert contains(part, selected[name]), (method, name)


def test_ranges_and_choices_refuse_what_is_none() -> None:
    with pytest.raises(ConfigError, match="Must be less than 1"):
        Range(low=1, high=1)
    with pytest.raises(ConfigError, match="larger than 0 for log"):
        Range(low=0, high=1, log=True)
    with pytest.raises(ConfigError, match="two or more"):
        Choice(values=(1,))


def test_tasks_are_four_or_as_many_as_there_are() -> None:
    def last(benchmark: str, tasks: int | None = None) -> int:
        return TuneConfig(benchmark=benchmark, method="er", tasks=tasks, device="cpu").last_task

    assert last("split-digits") == last("split-cifar100") == last("pacs") == 3
    assert last("convex") == 9
    assert last("split-digits", 2) == 1
    assert last("split-digits", 50) == 4


def test_what_is_given_is_not_searched() -> None:
    config = TuneConfig(
        benchmark="split-digits", method="ocar", settings={"ema": 0.5, "memory": 50}, device="cpu"
    )
    assert list(config.space) == ["lr", "tau_step"]
    own, transform = config.run_config({"lr": 0.01, "tau_step": 1e-9}).resolve()
    assert (own.lr, own.memory, vars(transform)["ema"]) == (0.01, 50, 0.5)
    with pytest.raises(ConfigError, match="Nothing to search"):
        TuneConfig(benchmark="split-digits", method="er", settings={"lr": 0.1})
    with pytest.raises(ConfigError, match="has no setting nonsense"):
        TuneConfig(benchmark="split-digits", method="er", settings={"nonsense": 0.1})
    with pytest.raises(ConfigError, match="Invalid tasks=0"):
        TuneConfig(benchmark="split-digits", method="er", tasks=0)


def test_a_trial_is_pruned_if_it_is_not_in_the_best_eighth() -> None:
    others = [0.1 * rank for rank in range(11)]  # of twelve, two continue
    for value, hopeless in ((0.85, True), (0.9, False), (0.95, False), (2.0, False)):
        assert is_hopeless(value, others, lower_is_better=False) is hopeless
        assert is_hopeless(-value, [-x for x in others], lower_is_better=True) is hopeless
    assert not is_hopeless(-1.0, others[: TRIALS - 1], lower_is_better=False)
