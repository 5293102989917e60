"""CLINC150: short requests to an assistant, 150 intents in ten domains, and others out of scope.

Larson et al., An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction, EMNLP
2019. ``data_full.json`` has the sentences of each part with their intents, ``domains.json`` the
intents of each domain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ocar.datasets.archives import is_file, reading
from ocar.datasets.arrays import Arrays
from ocar.datasets.base import DataSet
from ocar.datasets.texts import Encoder, HashedWords
from ocar.errors import DataError
from ocar.files import read_file

_FOLDER = "CLINC150"
_DATA, _DOMAINS = "data_full.json", "domains.json"
_MOST_BYTES = 64 << 20
_MD5 = {  # of the files in the repository
    _DATA: "30c29dc6ab78edf3b5dfa640be204cde",
    _DOMAINS: "9beee9d0f36e07e914c1e3a626bdcb4a",
}


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """The sentences of one part."""

    texts: tuple[str, ...]
    intents: tuple[str, ...]  #: The intent of each.


@dataclass(frozen=True, kw_only=True)
class Intents:
    """CLINC150 as it is published."""

    train: Sentences  #: 100 sentences an intent.
    validation: Sentences  #: 20 sentences an intent.
    test: Sentences  #: 30 sentences an intent.
    unknown: tuple[str, ...]  #: The 1,000 test sentences that are out of scope.
    unknown_validation: tuple[str, ...]  #: 100 others, to choose a threshold by.
    domains: Mapping[str, tuple[str, ...]]  #: The intents of each domain.


class Clinc150(DataSet):
    """CLINC150, with hashed words as samples."""

    name = "clinc150"
    how_to_get = (
        f"Put data/{_DATA} and data/{_DOMAINS} from https://github.com/clinc/oos-eval in "
        f"{_FOLDER} under the data root."
    )
    counts = (15_000, 4_500)

    def load(self, root: Path) -> Arrays:
        """Read it from the data root."""
        return load_clinc150(root)

    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        paths = {root / _FOLDER / name: md5 for name, md5 in _MD5.items()}
        found = any(is_file(path) for path in paths)
        return root / _FOLDER, {p: md5 if is_file(p) else None for p, md5 in paths.items() if found}


CLINC150 = Clinc150()
"""Requests to an assistant."""


def load_clinc150(root: Path | str, *, encode: Encoder | None = None) -> Arrays:
    """CLINC150, 15,000 training, 3,000 validation and 4,500 test sentences of 150 intents.

    The sentences that are out of scope are ``x_unknown``. A domain is a group of 15 intents.

    Args:
        root: The data root, with ``CLINC150/data_full.json`` and ``CLINC150/domains.json``.
        encode: From sentences to samples; by default :class:`~ocar.datasets.texts.HashedWords`.
    """
    encode = HashedWords() if encode is None else encode
    published = read_clinc150(root)
    domains = tuple(published.domains)
    classes = tuple(intent for intents in published.domains.values() for intent in intents)
    label = {intent: number for number, intent in enumerate(classes)}
    owner = torch.tensor([domains.index(d) for d, mine in published.domains.items() for _ in mine])
    y_train, y_validation, y_test = (
        torch.tensor([label[intent] for intent in part.intents])
        for part in (published.train, published.validation, published.test)
    )
    return Arrays(
        name=CLINC150.name,
        x_train=encode(published.train.texts),
        y_train=y_train,
        x_validation=encode(published.validation.texts),
        y_validation=y_validation,
        x_test=encode(published.test.texts),
        y_test=y_test,
        x_unknown=encode(published.unknown),
        domain_train=owner[y_train],
        domain_test=owner[y_test],
        classes=classes,
        domains=domains,
    )


def read_clinc150(root: Path | str) -> Intents:
    """The sentences of CLINC150 with their intents, as text."""
    folder = Path(root) / _FOLDER
    domains = _domains(folder / _DOMAINS)
    known = {intent for intents in domains.values() for intent in intents}
    path = folder / _DATA
    data = _json(path)

    def part(name: str, allowed: set[str]) -> Sentences:
        rows = data.get(name)
        if not isinstance(rows, list) or not rows:
            raise DataError(f"{path} has no sentences in {name!r}.")
        for row in rows:
            strings = isinstance(row, list) and all(isinstance(value, str) for value in row)
            if not strings or len(row) != 2 or row[1] not in allowed:
                raise DataError(
                    f"{path}: {name!r} holds {str(row)[:80]!r}. Must be a sentence and its intent."
                )
        texts, intents = zip(*rows, strict=True)
        return Sentences(texts=texts, intents=intents)

    outside = {"oos"}
    return Intents(
        train=part("train", known),
        validation=part("val", known),
        test=part("test", known),
        unknown=part("oos_test", outside).texts,
        unknown_validation=part("oos_val", outside).texts,
        domains=domains,
    )


def _domains(path: Path) -> dict[str, tuple[str, ...]]:
    domains = _json(path)
    for domain, intents in domains.items():
        if not isinstance(intents, list) or not all(isinstance(i, str) for i in intents):
            raise DataError(f"{path}: {domain!r} is no list of intents.")
    names = [intent for intents in domains.values() for intent in intents]
    if len(set(names)) < len(names) or not names:
        raise DataError(f"{path} must list each intent in one domain; it lists {len(names)}.")
    return {domain: tuple(intents) for domain, intents in domains.items()}


def _json(path: Path) -> dict[str, Any]:
    if not is_file(path):
        raise DataError(f"No CLINC150 file {path}. {CLINC150.how_to_get}")
    with reading(path):
        content = json.loads(read_file(path, most=_MOST_BYTES))
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}. Must be an object.")
    return content
