"""``--preset FILE``: settings of a method from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocar.errors import ConfigError
from ocar_lab.experiment.config import method_name
from ocar_lab.tune.preset import read_preset

Settings = dict[str, dict[str, Any]]
"""Settings that are given, by method."""


def with_preset(
    path: Path | None,
    benchmark: str,
    methods: Sequence[str],
    transform: str | None,
    settings: Mapping[str, Mapping[str, Any]],
) -> tuple[Settings, list[str]]:
    """The settings of each method, those of a file below those of the flags.

    Args:
        path: The file, if there is one.
        benchmark: What is to be run.
        methods: The methods to be run.
        transform: The transform that was given, if one was.
        settings: What the flags say, by method.

    Returns:
        The settings, and lines about what is not as one may think.

    Raises:
        ConfigError: The file is no preset, or of a method that is not to be run.
    """
    given = {method: dict(own) for method, own in settings.items()}
    if path is None:
        return given, []
    preset = read_preset(path)
    names = {method_name(method, transform): method for method in methods}
    if preset.name not in names:
        raise ConfigError(
            f"Invalid --preset {path}: it is for {preset.name}, which is not to be run here "
            f"({', '.join(names)})."
        )
    method = names[preset.name]
    given[method] = {**preset.settings, **given.get(method, {})}
    if preset.benchmark != benchmark:
        return given, [f"{path} was found on {preset.benchmark}, not on {benchmark}.\n"]
    return given, []
