"""Search for the settings of a method on a benchmark, by the paper's protocol."""

from ocar.methods.spaces import Choice, Range, Space
from ocar_lab.runs.studies import Trial
from ocar_lab.tune.config import TuneConfig
from ocar_lab.tune.events import Ended, Moved, SearchEvent
from ocar_lab.tune.preset import Preset, read_preset, write_preset
from ocar_lab.tune.spaces import search_space
from ocar_lab.tune.study import Study

__all__ = [
    "Choice",
    "Ended",
    "Moved",
    "Preset",
    "Range",
    "SearchEvent",
    "Space",
    "Study",
    "Trial",
    "TuneConfig",
    "read_preset",
    "search_space",
    "write_preset",
]
