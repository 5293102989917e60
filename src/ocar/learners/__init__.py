"""Learners: an objective, a memory and a gradient transform, put together."""

from ocar.learners.base import Learner, Report
from ocar.learners.checkpoint import load
from ocar.learners.methods.er import ER, ERSettings
from ocar.learners.methods.ocar import OCAR, OCARSettings
from ocar.learners.presets import PRESETS
from ocar.learners.registry import METHODS, TRANSFORMS, make_learner
from ocar.learners.serving import Answer, Serving
from ocar.learners.settings import LearnerSettings

__all__ = [
    "ER",
    "METHODS",
    "OCAR",
    "PRESETS",
    "TRANSFORMS",
    "Answer",
    "ERSettings",
    "Learner",
    "LearnerSettings",
    "OCARSettings",
    "Report",
    "Serving",
    "load",
    "make_learner",
]
