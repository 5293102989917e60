"""The workbench behind the ``ocar`` command: runs, tuning, tables, figures, reports.

It imports the library; the library never imports it::

    stored = ocar_lab.run(ocar_lab.RunConfig(benchmark="split-digits", method="ocar"))

Both names are imported when they are first used, so that the command line's help does not wait for
PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocar_lab.experiment import RunConfig, run

__all__ = ["RunConfig", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("ocar_lab.experiment"), name)
