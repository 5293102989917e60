"""Curvature as a gradient preconditioner for any ``nn.Module``."""

from ocar.curvature.curvature import Curvature
from ocar.curvature.dense import DenseFisher
from ocar.curvature.ekfac import EKFAC
from ocar.curvature.foof import FOOF
from ocar.curvature.kfac import KFAC
from ocar.curvature.layerwise import LayerCurvature
from ocar.registry import Registry

CURVATURES: Registry[type[Curvature]] = Registry(
    "curvature", {"kfac": KFAC, "ekfac": EKFAC, "foof": FOOF, "dense": DenseFisher}
)
"""Kinds of curvature by name."""

__all__ = ["CURVATURES", "EKFAC", "FOOF", "KFAC", "Curvature", "DenseFisher", "LayerCurvature"]
