"""A method has the same style everywhere, and no other method has it."""

from __future__ import annotations

import itertools
import re

from ocar.methods.registry import METHODS
from ocar_lab.drawing import method_styles
from ocar_lab.styles import STYLES, Colour, styles

PAPER, NIGHT = "#ffffff", "#15171a"


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_its_own_style() -> None:
    assert {*METHODS, "er-iid"} == set(STYLES)
    for one, other in itertools.combinations(STYLES.values(), 2):
        assert one.dashes != other.dashes
        assert one.colour != other.colour or one.marker != other.marker


def test_lines_are_visible_on_white_and_on_black() -> None:
    for style in STYLES.values():
        assert isinstance(style.colour, Colour)
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in style.colour)
        assert contrast(style.colour.light, PAPER) >= 3  # what WCAG 2 asks of lines
        assert contrast(style.colour.dark, NIGHT) >= 3


def test_a_method_keeps_its_style_in_every_figure() -> None:
    assert styles(["er", "ocar"]) == styles(["ocar", "er"])[::-1] == [STYLES["er"], STYLES["ocar"]]
    several = styles(["er", "mine", "ocar", "er", "er"])
    assert several[0] == STYLES["er"]
    assert several[2] == STYLES["ocar"]
    assert len(set(several)) == 5
    assert len(styles(["er"] * 50)) == 50


def test_figures_have_the_styles_of_reports() -> None:
    assert method_styles(["er", "x"])["x"][0] == styles(["er", "x"])[1].colour.light
    assert method_styles(["ocar"])["ocar"][1:] == ("-", "o")
    assert method_styles(["er"])["er"] == (STYLES["er"].colour.light, (0, (5, 2)), "s")
