"""How fast the package is: ratios of two sides that are measured in turns, in one run.

    for result in measure(Setup(device=torch.device("cpu")), only=("mlp",)):
        print(result)

A number of seconds says more about a machine and its other users than about a program. So what is
measured here stands beside something else, in the same process and at the same time.
"""

from benchmarks.document import SCHEMA, document
from benchmarks.results import Breakdown, Part, Ratio, Result, Skipped, Target
from benchmarks.setup import Setup, choose_device
from benchmarks.suite import GROUPS, Group, check_names, measure

__all__ = [
    "GROUPS",
    "SCHEMA",
    "Breakdown",
    "Group",
    "Part",
    "Ratio",
    "Result",
    "Setup",
    "Skipped",
    "Target",
    "check_names",
    "choose_device",
    "document",
    "measure",
]
