"""The cases of the check-suite: every method, alone and with every gradient transform.

A method that is registered is a case by itself. What suits it on the toy problems may stand in
one of the tables below; a method that is in none of them is given the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from toys import seeded

from ocar.errors import ConfigError
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.methods.presets import PRESETS
from ocar.methods.registry import METHODS, TRANSFORMS

DEFAULT = Guard()

DEFAULTS: dict[str, Any] = {"lr": 0.1, "memory": 30, "passes": 2, "replay_batch": 8}
"""Settings of every method, where it has them."""

OF_METHODS: dict[str, dict[str, Any]] = {
    "agem": {"reference": 20},
    "gdumb": {"epochs": 10, "train_batch": 10},
    "mir": {"subsample": 20},
    "ocm": {"lr": 0.02, "replay_batch": 30, "replay_per_class": 3},
    "onpro": {"lr": 0.02, "replay_batch": 30, "replay_per_class": 3},
    "scr": {"lr": 0.05, "temperature": 0.2},
}
"""Settings of single methods, over the defaults."""

_BY_SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.2, "temperature": 0.5}
_GENTLE: dict[str, Any] = {"omega0": 0.1, "damping": 0.1, "tau": 0.1}

OF_COMBINED: dict[str, dict[str, Any]] = {"ocm": _BY_SGD | _GENTLE, "onpro": _BY_SGD | _GENTLE}
"""What single methods want beside another gradient transform than their own, over all else."""

OF_TRANSFORMS: dict[str, dict[str, Any]] = {
    "ewc": {"strength": 0.1},
    "ngd": {"lr": 0.02, "damping": 0.02, "ema": 0.2},
    "ocar": {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2},
}
"""Settings of gradient transforms and, where they want another, of the learning rate."""

OF_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "der++": [{"labels_from": "own"}],
    "er-lwf": [
        {"teacher": "batches", "refresh": 3, "distilled": "paper"},
        {"teacher": "labels", "teacher_mode": "eval"},
    ],
    "ewc": [
        {"fisher": "sampled(1)"},
        {"fisher": "sampled(1)", "accumulation": "sum", "anchor_every": 3, "structure": "full"},
        {"penalty": "implicit", "anchor_every": 2},
    ],
    "lpr": [{"refresh_every": 5, "refresh_samples": 12}],
    "mir": [{"exclude": "none", "scoring": "eval"}],
    "ocm": [{"stretches": "boundary"}, {"stretches": "batches", "stretch": 3}],
    "onpro": [
        {"stretches": "boundary"},
        {"stretches": "batches", "stretch": 3, "mixup": 0.8, "base_rate": 0.5},
    ],
    "rar": [{"perturbation": "paper"}],
    "scr": [
        {
            "base_temperature": 0.07,
            "unit_length": "features",
            "views": "survey",
            "means": "averaged",
        }
    ],
}
"""Other settings of single methods, with which they keep or draw something else."""

BAR = 0.6
"""Accuracy that a method must reach on five separable classes that arrive in three stretches."""

MODEST: dict[str, float] = {"agem": 0.4, "der": 0.45, "ocm": 0.45, "onpro": 0.4}
"""That of methods which are not meant to be strong here; 0.2 is chance."""


@dataclass(frozen=True)
class Case:
    """A method, and perhaps another gradient transform than its own, or other settings."""

    method: str
    transform: str | None = None
    variant: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        name = self.method if self.transform is None else f"{self.method}+{self.transform}"
        return "-".join([name, *map(str, self.variant.values())])

    @property
    def bar(self) -> float:
        return MODEST.get(self.method, BAR)

    @property
    def kinds(self) -> list[Any]:
        """The dataclasses of its settings: of the method and, if there is one, of the transform."""
        chosen = METHODS[self.method]
        other = chosen.transform if self.transform is None else TRANSFORMS[self.transform]
        return [chosen.settings] if other is None else [chosen.settings, other]

    def settings(self, **given: Any) -> list[Any]:
        """The settings for a toy problem, one for each of :attr:`kinds`."""
        names = {cls: name for name, cls in TRANSFORMS.items()}
        values = DEFAULTS | OF_METHODS.get(self.method, {})
        for kind in self.kinds[1:]:
            values |= OF_TRANSFORMS.get(names[kind], {})
        if self.transform is not None:
            values |= OF_COMBINED.get(self.method, {})
        return [self._fill(kind, values | self.variant | given) for kind in self.kinds]

    def _fill(self, kind: Any, values: Mapping[str, Any]) -> Any:
        own = {f.name: values[f.name] for f in fields(kind) if f.name in values}
        needed = [f.name for f in fields(kind) if f.default is MISSING and f.name not in own]
        selected = _selected(kind)
        missing = [name for name in needed if name not in selected]
        assert not missing, f"{self} needs {missing}: add them to {__file__}."
        return kind(**{name: selected[name] for name in needed}, **own)

    def make(self, model: nn.Module, *, guard: Guard | None = DEFAULT, **given: Any) -> Learner:
        """A learner for a toy problem."""
        own, *transform = self.settings(**given)
        unknown = set(given) - {f.name for kind in self.kinds for f in fields(kind)}
        assert not unknown, unknown
        return Learner(model, own, transform=transform[0] if transform else None, guard=guard)

    @property
    def average(self) -> dict[str, str]:
        """Settings that predict by the average of the weights, if the method can do that."""
        try:
            self.settings(prediction="average")
        except ConfigError:
            return {}
        return {"prediction": "average"}


@cache
def _selected(kind: Any) -> dict[str, Any]:
    """What was selected on split-digits for a method with these settings, if for any."""
    for name, method in METHODS.items():
        preset = PRESETS["split-digits"].get(name)
        if preset is not None and kind in (method.settings, method.transform):
            return preset
    return {}


def _combinations() -> Iterator[Case]:
    """Each objective with each transform, unless the two have a name of their own."""
    named = {(m.settings, m.transform) for m in METHODS.values()}
    done = set()
    for method, entry in METHODS.items():
        for transform, kind in TRANSFORMS.items():
            pair = (entry.settings, kind)
            if pair not in named | done:
                done.add(pair)
                yield Case(method, transform)


def _is_refused(case: Case) -> bool:
    model = convnet()
    own, transform = case.settings()
    try:
        Learner(model, own, transform=transform)
    except ConfigError:
        return True
    return False


# --- models and streams --------------------------------------------------------------------------

CLASSES = 16
"""Labels that there can be; always as many, so that a class looks the same in every stream."""


def mlp(units: int = 2) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, units)))


def convnet(units: int = 2) -> nn.Module:
    """With BatchNorm in train mode and activations in place, for images of 8 × 8 in colour."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, bias=False),
            nn.BatchNorm2d(4, momentum=0.25),  # the streams are short
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(36, units),
        )
    )


def blobs(count: int, labels: list[int], *, seed: int = 0, size: int = 10) -> Iterator:
    """Batches of vectors; each class is a cloud around a centre of its own."""
    centres = torch.randn(CLASSES, 6, generator=torch.Generator().manual_seed(99)) * 3
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        y = torch.tensor(labels)[torch.randint(len(labels), (size,), generator=generator)]
        yield centres[y] + torch.randn(size, 6, generator=generator), y


def pictures(count: int, labels: list[int], *, seed: int = 0, size: int = 10) -> Iterator:
    """Batches of uint8 images; each class has a coarse pattern of its own."""
    fixed, generator = torch.Generator().manual_seed(99), torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 200, (CLASSES, 3, 4, 4), generator=fixed)
    patterns = coarse.repeat_interleave(2, -1).repeat_interleave(2, -2)
    for _ in range(count):
        y = torch.tensor(labels)[torch.randint(len(labels), (size,), generator=generator)]
        noise = torch.randint(0, 56, (size, 3, 8, 8), generator=generator)
        yield (patterns[y] + noise).to(torch.uint8), y


TOYS = {"mlp": (mlp, blobs), "convnet": (convnet, pictures)}
"""A model and the stream that goes with it."""


# --- looking at learners -------------------------------------------------------------------------


def accuracy(learner: Learner, x: Tensor, y: Tensor) -> float:
    predicted = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    return float((predicted == y).double().mean())


def generators(learner: Learner) -> list[Tensor]:
    """The states of all generators of a learner that can be found."""
    parts = (learner, learner.memory, learner.objective, learner.transform)
    found = [g for part in parts for g in vars(part).values() if isinstance(g, torch.Generator)]
    found += [*learner.objective.generators, *learner.transform.generators]
    return [generator.get_state() for generator in found]


def gradients(learner: Learner) -> list[Tensor | None]:
    """Copies of all gradients that are there."""
    grads = [p.grad for p in learner._steps.parameters()]
    return [None if grad is None else grad.clone() for grad in grads]


def size_of(learner: Learner) -> int:
    """Bytes of all that a learner keeps."""
    return sum(t.numel() * t.element_size() for t in learner.state()[0].values())


# --- the cases ------------------------------------------------------------------------------------

ALONE = [Case(method) for method in METHODS]
COMBINED = list(_combinations())
REFUSED = [case for case in COMBINED if _is_refused(case)]
LEGAL = [*ALONE, *(case for case in COMBINED if case not in REFUSED)]
VARIANTS = [Case(method, variant=one) for method, own in OF_VARIANTS.items() for one in own]
