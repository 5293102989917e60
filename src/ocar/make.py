"""Learners by name, and names for one's own parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from ocar import accel
from ocar.curvature import CURVATURES, Curvature
from ocar.errors import ConfigError
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.memory import MEMORIES, Memory
from ocar.methods.registry import METHODS, TRANSFORMS, Method, make_settings, preset_settings
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.models.registry import MODELS
from ocar.streams.benchmarks import BENCHMARKS, Benchmark


def make_learner(
    method: str,
    model: nn.Module,
    *,
    preset: str | None = None,
    transform: str | None = None,
    record: bool = True,
    guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
    ranks: accel.Ranks | None = None,
    **settings: Any,
) -> Learner:
    """A learner by the name of its method.

    Args:
        method: A name in ``METHODS``, such as ``"ocar"``.
        model: Any module.
        preset: A benchmark whose selected settings to start from, such as ``"split-cifar100"``.
        transform: A gradient transform to use with the method's objective, such as ``"ocar"``.
        record: On a GPU, record the steps as CUDA graphs.
        guard: When to back off from a batch; None for never.
        ranks: The processes that learn together, see :class:`ocar.Ranks`; None for one.
        **settings: Settings of the method and of its transform, over those of the preset.

    Raises:
        ConfigError: A name is unknown, a setting is missing or out of range.
    """
    values = {**preset_settings(preset, method), **settings} if preset is not None else settings
    own, rewriting = make_settings(method, transform=transform, **values)
    return Learner(model, own, transform=rewriting, record=record, guard=guard, ranks=ranks)


def ER(model: nn.Module, **settings: Any) -> Learner:
    """Experience replay with plain SGD on any model.

    The settings are those of :class:`~ocar.methods.er.ERSettings`, and ``guard``, ``record`` and
    ``ranks`` of :func:`make_learner`.
    """
    return make_learner("er", model, **settings)


def OCAR(model: nn.Module, **settings: Any) -> Learner:
    """Online Curvature-Aware Replay on any model.

    Example::

        learner = OCAR(model, memory=2000)
        for x, y in stream:
            learner.learn(x, y)
        logits = learner.predict(x)

    The settings are those of :class:`~ocar.methods.er.ERSettings` and
    :class:`~ocar.methods.ocar.OCARSettings`, and ``guard``, ``record`` and ``ranks`` of
    :func:`make_learner`.
    """
    return make_learner("ocar", model, **settings)


def _show_settings(function: Callable[..., Learner], method: str) -> None:
    """Let ``help`` and editors list the settings of a method."""
    chosen = METHODS[method]
    kinds: list[Any] = [kind for kind in (chosen.settings, chosen.transform) if kind is not None]
    own = [p for kind in kinds for p in inspect.signature(kind).parameters.values()]
    common = inspect.signature(make_learner).parameters
    shown = [common["model"], *own, common["record"], common["guard"], common["ranks"]]
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        shown, return_annotation="Learner"
    )


_show_settings(ER, "er")
_show_settings(OCAR, "ocar")


def register(name: str, thing: Any) -> Any:
    """Name a method, transform, curvature, memory, model or benchmark of one's own; returns it.

    What is registered can be chosen by name, in Python, on the command line (``ocar run --plugin
    MODULE``) and in checkpoints. A package can register by itself: with an entry point in the group
    ``ocar.plugins`` that imports the module.

    Args:
        name: The name.
        thing: A :class:`~ocar.methods.registry.Method` or a subclass of ``LearnerSettings``, a
            subclass of ``TransformSettings``, ``Curvature`` or ``Memory``, a ``Benchmark``, or a
            function from image shape and classes to a model.

    Raises:
        ConfigError: It is none of these, or another thing has that name.
    """
    kinds = {
        LearnerSettings: METHODS, TransformSettings: TRANSFORMS,
        Curvature: CURVATURES, Memory: MEMORIES,
    }  # fmt: skip
    if isinstance(thing, Method):
        METHODS.add(name, thing)
    elif isinstance(thing, Benchmark):
        BENCHMARKS.add(name, thing)
    elif isinstance(thing, type):
        registry: Any = next((r for kind, r in kinds.items() if issubclass(thing, kind)), None)
        if registry is None:
            raise ConfigError(f"{thing.__name__} is no method, transform, curvature or memory.")
        about = (thing.__doc__ or name).partition("\n")[0]
        registry.add(name, Method(settings=thing, about=about) if registry is METHODS else thing)
    elif callable(thing):
        MODELS.add(name, thing)
    else:
        raise ConfigError(f"Cannot register {thing!r}: see help(ocar.register).")
    return thing
