"""Search for the settings of a method on a benchmark, by the paper's protocol."""

from ocar.tune.config import TuneConfig
from ocar.tune.preset import Preset, read_preset, write_preset
from ocar.tune.search import Begun, Ended, Moved, SearchEvent, search
from ocar.tune.spaces import Choice, Range, Space, search_space
from ocar.tune.study import Study, Trial

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
