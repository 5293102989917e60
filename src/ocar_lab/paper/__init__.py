"""The paper's tables from stored runs: its numbers, ours, and how far they are apart.

Numbers first: each module makes plain data of runs, which the command line draws.
"""

from ocar_lab.paper.cells import Cell, deviations
from ocar_lab.paper.choice import Choice, choose
from ocar_lab.paper.claims import Claim, Verdict, check
from ocar_lab.paper.commands import Command, run_line
from ocar_lab.paper.tables import PaperTable, Row, clear_tables, table1
from ocar_lab.paper.times import TimeRow, TimesTable, times_table

__all__ = [
    "Cell",
    "Choice",
    "Claim",
    "Command",
    "PaperTable",
    "Row",
    "TimeRow",
    "TimesTable",
    "Verdict",
    "check",
    "choose",
    "clear_tables",
    "deviations",
    "run_line",
    "table1",
    "times_table",
]
