"""A method looks the same everywhere, and like no other."""

from __future__ import annotations

import itertools
import re

from ocar.methods.registry import METHODS
from ocar_lab.paper.figures import style
from ocar_lab.styles import LOOKS, Colour, for_matplotlib, looks

PAPER, NIGHT = "#ffffff", "#15171a"


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_a_look_of_its_own() -> None:
    assert {*METHODS, "er-iid"} == set(LOOKS)
    for one, other in itertools.combinations(LOOKS.values(), 2):
        assert one.dashes != other.dashes
        assert one.colour != other.colour or one.marker != other.marker


def test_lines_are_seen_on_white_and_on_black() -> None:
    for look in LOOKS.values():
        assert isinstance(look.colour, Colour)
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in look.colour)
        assert contrast(look.colour.light, PAPER) >= 3  # what WCAG 2 asks of lines
        assert contrast(look.colour.dark, NIGHT) >= 3


def test_a_method_keeps_its_look_whatever_is_beside_it() -> None:
    assert looks(["er", "ocar"]) == looks(["ocar", "er"])[::-1] == [LOOKS["er"], LOOKS["ocar"]]
    several = looks(["er", "mine", "ocar", "er", "er"])
    assert several[0] == LOOKS["er"]
    assert several[2] == LOOKS["ocar"]
    assert len(set(several)) == 5
    assert len(looks(["er"] * 50)) == 50


def test_figures_have_the_looks_of_reports() -> None:
    assert style.looks(["er", "x"]) == {
        "er": for_matplotlib(LOOKS["er"]),
        "x": for_matplotlib(looks(["er", "x"])[1]),
    }
    assert style.looks(["er"])["er"] == (LOOKS["er"].colour.light, (0, (5, 2)), "s")
