"""Search for the settings of a method on a benchmark, by the paper's protocol."""

from ocar_lab.tune.config import TuneConfig
from ocar_lab.tune.preset import Preset, read_preset, write_preset
from ocar_lab.tune.search import Begun, Ended, Moved, SearchEvent, search
from ocar_lab.tune.spaces import Choice, Range, Space, search_space
from ocar_lab.tune.study import Study, Trial

__all__ = [
    "Begun",
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
    "search",
    "search_space",
    "write_preset",
]
