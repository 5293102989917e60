"""What the page on the first hour prints is what its commands print."""

from __future__ import annotations

import re
import shutil

import pytest
from docs_pages import ROOT
from first_hour import INSTALL, PAGE, blocks, parse, run_page, shape

TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = [
    command for kind, block in blocks(TEXT) if kind == "console" for command, _ in parse(block)
]


def test_the_commands_of_the_readme_are_on_the_page_in_their_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"(?ms)^## Five commands\n+```sh\n(.*?)^```", readme)
    assert found is not None
    lines = [line.partition("#")[0].strip() for line in found[1].splitlines()]
    given = [line for line in lines if not line.startswith(". ")]  # the page says it in words
    assert len(given) == 5
    assert [command for command in dict.fromkeys(COMMANDS) if command in given] == given


def test_a_shape_is_that_of_words() -> None:
    assert shape("Acc 76.9% x\nAAA +1.2 *\n") == shape("AAA -7\nAcc 3 x\n")
    assert shape("Acc 76.9%\n") != shape("WC-Acc 76.9%\n")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks the service by curl")
def test_the_commands_print_what_the_page_prints() -> None:
    ran = list(run_page(TEXT, new=False))
    assert [command for command, _, _ in ran] == [c for c in COMMANDS if not c.startswith(INSTALL)]
    for command, printed, said in ran:
        assert shape(said) == shape(printed), command
