"""E-KFAC without eigenbases, to compare runs that round differently.

Where a factor has no full rank, some of its eigenvectors turn with its rounding, and so do the
second moments that E-KFAC measures along them. In the basis of the axes these are the diagonal of
the Fisher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ocar.curvature import EKFAC
from ocar.curvature.ekfac import EigenBlocks
from ocar.curvature.layers import Layer, MatrixLayer


class AxesBlocks(EigenBlocks):
    """The basis of the axes, for ever."""

    def is_due(self, batches: int) -> bool:
        return False

    def _renew_bases(self, layers: Iterable[str]) -> None:
        pass


class InAxes(EKFAC):
    """E-KFAC in the basis of the axes."""

    def kinds(self) -> Mapping[type[Layer], Any]:
        return {**super().kinds(), MatrixLayer: partial(AxesBlocks, every=1, factored=True)}
