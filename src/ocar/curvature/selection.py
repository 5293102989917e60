"""Which parameters may have curvature: ``exclude=`` and ``include=``.

A pattern is the name of a parameter or module, a class of modules, or the name of such a class. In
a name ``*`` matches anything, as in the shell. A module stands for all of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ocar.errors import ConfigError, ModelError

Patterns = Sequence[str | type[nn.Module]]


def as_names(patterns: Patterns) -> tuple[str, ...]:
    """Patterns as texts, which a checkpoint can hold: of a class its name."""
    given = (patterns,) if isinstance(patterns, (str, type)) else patterns
    return tuple(one.__name__ if isinstance(one, type) else one for one in given)


class Selection:
    """The trainable parameters of a model that may have curvature.

    Args:
        model: The model.
        exclude: Patterns of parameters that have none, whatever else they match.
        include: Patterns of parameters that may have it; nothing for all.

    Raises:
        ConfigError: A pattern matches nothing.
    """

    def __init__(self, model: nn.Module, *, exclude: Patterns = (), include: Patterns = ()) -> None:
        chosen = {p for p in model.parameters() if p.requires_grad}
        if as_names(include):
            chosen &= _matching(model, "include", as_names(include))
        self._chosen = chosen - _matching(model, "exclude", as_names(exclude))

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._chosen


def _matching(model: nn.Module, option: str, patterns: Sequence[str]) -> set[nn.Parameter]:
    """The parameters that match a pattern."""
    labels: dict[nn.Parameter, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):  # shared: several names
        labels.setdefault(parameter, set()).update(_labels(model, name))
    every = set().union(*labels.values())
    useless = [p for p in patterns if not any(fnmatchcase(label, p) for label in every)]
    if useless:
        shown = ", ".join(name for name, _ in model.named_children())
        raise ConfigError(
            f"Invalid {option}: no parameter, module or class of modules of "
            f"{type(model).__name__} matches {', '.join(map(repr, useless))}. "
            f"Its modules: {shown or 'none'}."
        )
    return {
        parameter
        for parameter, own in labels.items()
        if any(fnmatchcase(label, pattern) for pattern in patterns for label in own)
    }


def _labels(model: nn.Module, name: str) -> Iterator[str]:
    """What a parameter can be called by: its name, its modules' names and classes."""
    yield name
    module = model
    yield from _classes(module)
    parts = name.split(".")[:-1]
    for depth, part in enumerate(parts, start=1):
        module = module.get_submodule(part)
        yield ".".join(parts[:depth])
        yield from _classes(module)


def _classes(module: nn.Module) -> Iterator[str]:
    for kind in type(module).__mro__:
        if kind not in (nn.Module, object):
            yield kind.__name__


def no_parameters(model: nn.Module) -> ModelError:
    """The error where nothing is left that could have curvature."""
    return ModelError(
        f"{type(model).__name__} has no trainable Linear, convolution, MultiheadAttention or "
        "Embedding layer to take the curvature of, or exclude and include leave none."
    )
