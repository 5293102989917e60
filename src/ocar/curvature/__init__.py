"""Curvature as a gradient preconditioner for any ``nn.Module``."""

from ocar.curvature.base import Curvature
from ocar.curvature.dense import DenseFisher
from ocar.curvature.kfac import KFAC

__all__ = ["KFAC", "Curvature", "DenseFisher"]
