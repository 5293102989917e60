"""``ocar tune --stream``: search for the settings of a method on one's own recorded stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require
from ocar.errors import ConfigError
from ocar.methods.registry import METHODS
from ocar.methods.spaces import search_space
from ocar.models.registry import MODELS, make_model
from ocar.streams.iterable import as_labelled
from ocar.structure import describe
from ocar.suggest import suggest
from ocar_lab.cli.arguments import parse_groups, shared_group
from ocar_lab.cli.flags import method_settings, setting_owners
from ocar_lab.cli.tables import print_text
from ocar_lab.tune.own_stream import Batches, open_stream

COMMAND = "ocar tune --stream MODULE:FUNCTION"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Search for settings on a recorded stream of your own, without task labels.

    A few samples are held out. Each trial learns the others in order and is scored by the accuracy
    on the held-out samples so far, averaged over time. The last line is Python code for a learner
    with the best settings. Ctrl-C ends the search with the best so far. A setting that is given as
    a flag is not searched.
    """

    stream: str | None = None
    """MODULE:FUNCTION, a function without arguments that returns batches (x, y), or (model,
    batches); or a folder of images, class/*.jpg or domain/class/*.jpg."""

    method: str = "ocar"
    """The method; ocar methods lists them."""

    minutes: float = 5.0
    """Time that the search may take."""

    trials: int | None = None
    """Number of trials, instead of a time; then the search is repeatable."""

    seed: int = 0
    """Seed of the search, of the learners and of a model that is made here."""

    model: str | None = None
    """Model, if the function returns none: mlp, linear, slim-resnet18 or resnet18; by default
    slim-resnet18 for square images of 16 pixels or more, else mlp."""

    size: int = 32
    """Height and width of images in a folder."""

    at_a_time: int = 2
    """Classes that come at a time, by name, if a folder has no domains."""

    device: str = "auto"
    """Device of a model that is made here: auto, cpu or cuda."""

    def __post_init__(self) -> None:
        require("minutes", self.minutes, 0 < self.minutes < float("inf"), "larger than 0")
        require("trials", self.trials, self.trials is None or self.trials >= 1, "at least 1")
        require("size", self.size, self.size >= 1, "at least 1")
        require("at_a_time", self.at_a_time, self.at_a_time >= 1, "at least 1")
        if self.model is not None:
            MODELS.find(self.model)


def main(arguments: Sequence[str]) -> int:
    """Search and print what was found, the line to paste last."""
    if not arguments[0].startswith("-"):
        raise ConfigError(f"Invalid {arguments[0]!r}. Give a benchmark and a method, or --stream.")
    method = _find_method(arguments)
    searched = ", ".join(search_space(method))
    about = f"Settings of the method that are not searched then. Searched: {searched}."
    own = {method: method_settings(method)}
    groups = {"settings": shared_group(own, about=about)}
    options, given = parse_groups(
        Options,
        arguments,
        command=COMMAND,
        groups=groups,
        about_unknown=lambda name: setting_owners(name, [method]),
    )
    if options.stream is None:
        raise ConfigError(f"A stream is needed: {COMMAND}")
    model, batches = open_stream(
        options.stream, size=options.size, at_a_time=options.at_a_time, seed=options.seed
    )
    made = ""
    if model is None:
        model, made = _make_model(options, batches)
    elif options.model is not None:
        raise ConfigError(f"Invalid --model {options.model}: the stream brings its own model.")
    found = suggest(
        model,
        batches,
        method=method,
        minutes=options.minutes,
        trials=options.trials,
        seed=options.seed,
        **given["settings"],
    )
    print_text(f"{made}{found}")
    return 0


def _find_method(arguments: Sequence[str]) -> str:
    """The method that the arguments name, which decides what flags there are."""
    words = [part for argument in arguments for part in argument.split("=", 1)]
    following = words[words.index("--method") + 1 :] if "--method" in words else ["ocar"]
    METHODS.find(following[0] if following else "")
    return following[0]


def _make_model(options: Options, batches: Batches) -> tuple[nn.Module, str]:
    """A model for the samples of a stream, and the line of code that makes it."""
    first = next(iter(batches), None)
    if first is None:
        raise ConfigError(f"Invalid --stream {options.stream}: it has no batches.")
    x, y = as_labelled(first, "Batch 0")
    measured = isinstance(x, Tensor) and (x.is_floating_point() or x.dtype == torch.uint8)
    if not isinstance(x, Tensor) or not measured or x.dim() not in (2, 3, 4):
        raise ConfigError(
            f"No model for samples {describe(x)}: the function must return (model, batches)."
        )
    shape = (1, 1, *x.shape[1:])[-3:]
    image = x.dim() == 4 and shape[1] == shape[2] >= 16
    name = options.model or ("slim-resnet18" if image else "mlp")
    classes = y.shape[-1] if y.is_floating_point() else 16
    model = make_model(name, image_shape=shape, classes=classes, seed=options.seed)
    more = f", {classes=}" if classes != 16 else ""
    more += f", seed={options.seed}" if options.seed else ""
    line = f"model = ocar.make_model({name!r}, image_shape={shape}{more})"
    return model.to(accel.choose_device(options.device)), f"{line}\n"
