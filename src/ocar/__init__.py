"""Online continual learning with curvature-aware replay.

The names that most users need::

    learner = ocar.OCAR(model, memory=2000)
    learner.learn(x, y)
    logits = learner.predict(x)
    learner.save("ckpt")
    learner = ocar.load("ckpt", model)

They are imported when they are first used, so that ``import ocar`` and the command line's help do
not wait for PyTorch.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from ocar.version import __version__

if TYPE_CHECKING:
    from ocar.accel.ranks import Ranks
    from ocar.augment import CropFlip, Normalize
    from ocar.checkpoint import load
    from ocar.curvature import KFAC, DenseFisher
    from ocar.errors import OcarError
    from ocar.evaluate import evaluate
    from ocar.learner import Learner
    from ocar.make import ER, OCAR, make_learner, register
    from ocar.memory import (
        ClassBalancedMemory,
        ExponentialMemory,
        ReservoirMemory,
        WindowMemory,
    )
    from ocar.models import LatentReplay, make_model
    from ocar.serving import Serving
    from ocar.streams.benchmarks import make_stream
    from ocar.suggest import suggest

__all__ = [
    "ER",
    "KFAC",
    "OCAR",
    "ClassBalancedMemory",
    "CropFlip",
    "DenseFisher",
    "ExponentialMemory",
    "LatentReplay",
    "Learner",
    "Normalize",
    "OcarError",
    "Ranks",
    "ReservoirMemory",
    "Serving",
    "WindowMemory",
    "__version__",
    "evaluate",
    "load",
    "make_learner",
    "make_model",
    "make_stream",
    "register",
    "suggest",
]

_HOMES = {
    "ocar.curvature": ("KFAC", "DenseFisher"),
    "ocar.accel.ranks": ("Ranks",),
    "ocar.errors": ("OcarError",),
    "ocar.evaluate": ("evaluate",),
    "ocar.augment": ("CropFlip", "Normalize"),
    "ocar.checkpoint": ("load",),
    "ocar.learner": ("Learner",),
    "ocar.make": ("ER", "OCAR", "make_learner", "register"),
    "ocar.serving": ("Serving",),
    "ocar.memory": (
        "ClassBalancedMemory",
        "ExponentialMemory",
        "ReservoirMemory",
        "WindowMemory",
    ),
    "ocar.models": ("LatentReplay", "make_model"),
    "ocar.streams.benchmarks": ("make_stream",),
    "ocar.suggest": ("suggest",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


class _Package(types.ModuleType):
    """This package, with its names imported at first use."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Importing the module `ocar.evaluate` puts it here, where the function is meant.
        if isinstance(value, types.ModuleType) and _HOME.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray and cloudpickle send a function with the modules that it uses.
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
