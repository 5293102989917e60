"""Preset files: the settings of one method, which ``ocar tune`` writes and ``ocar run`` reads.

::

    {
     "format": "ocar-preset",
     "version": 1,
     "benchmark": "split-digits",
     "method": "ocar",
     "transform": null,
     "settings": {"lr": 0.06, "tau_step": 4e-08, "ema": 0.0046},
     "found": {"objective": "validation accuracy after 4 tasks", "value": 0.95, ...}
    }

``found`` is for readers only; a file written by hand may leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocar.config import WRONG_KIND, to_plain
from ocar.errors import ConfigError, OcarError
from ocar.files import printable_values, read_file
from ocar_lab.experiment.config import RunConfig, method_name
from ocar_lab.runs.folder import MOST_JSON, write_json

FORMAT, VERSION = "ocar-preset", 1


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings of one method."""

    benchmark: str  #: Benchmark of the search.
    method: str
    transform: str | None = None  #: Gradient transform; by default the method's own.
    settings: Mapping[str, Any]  #: Others keep their values.
    found: Mapping[str, Any] = field(default_factory=dict)  #: How they were found.

    def __post_init__(self) -> None:
        plain = {n: tuple(v) if isinstance(v, list) else v for n, v in dict(self.settings).items()}
        object.__setattr__(self, "settings", plain)
        RunConfig(  # checks names and values
            benchmark=self.benchmark,
            method=self.method,
            transform=self.transform,
            settings=plain,
        )

    @property
    def name(self) -> str:
        """Name of the method with its transform."""
        return method_name(self.method, self.transform)


def write_preset(path: Path, preset: Preset) -> None:
    """Write a preset to a file, atomically."""
    document = {"format": FORMAT, "version": VERSION, **to_plain(preset)}
    write_json(path, document)


def read_preset(path: Path) -> Preset:
    """Read a preset from a file.

    Raises:
        ConfigError: The file cannot be read, is no preset, or its settings are invalid.
    """
    try:
        document = printable_values(json.loads(read_file(path, most=MOST_JSON)))
    except FileNotFoundError as error:
        raise ConfigError(
            f"Invalid preset: {path} does not exist. ocar tune writes one."
        ) from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"Invalid preset: {path} cannot be read: it is no JSON.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"Invalid preset: {path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(
            f'Invalid preset: {path} is not a file that ocar tune wrote, with "format": "{FORMAT}".'
        )
    if document.get("version") != VERSION:
        raise ConfigError(
            f"Invalid preset: {path} has version {document.get('version')!r}. "
            f"This version of ocar reads {VERSION}."
        )
    values = {name: v for name, v in document.items() if name not in ("format", "version")}
    try:
        return Preset(**values)
    except (OcarError, *WRONG_KIND) as error:
        raise ConfigError(f"Invalid preset: {path}: {error}") from error
