"""Online continual learning with curvature-aware replay.

The names that most users need::

    learner = ocar.OCAR(model, lr=7e-4, tau_step=3.7e-8, ema=0.14, memory=2000)
    learner.learn(x, y)
    logits = learner.predict(x)
    learner.save("ckpt")
    learner = ocar.load("ckpt", model)
"""

from ocar.curvature import KFAC, DenseFisher
from ocar.errors import OcarError
from ocar.evaluate import evaluate
from ocar.images import CropFlip, Normalize
from ocar.learners import ER, OCAR, Learner, load, make_learner
from ocar.memory import ClassBalancedMemory, ReservoirMemory
from ocar.models import make_model
from ocar.streams.benchmarks import make_stream

__version__ = "0.1.0"

__all__ = [
    "ER",
    "KFAC",
    "OCAR",
    "ClassBalancedMemory",
    "CropFlip",
    "DenseFisher",
    "Learner",
    "Normalize",
    "OcarError",
    "ReservoirMemory",
    "evaluate",
    "load",
    "make_learner",
    "make_model",
    "make_stream",
]
