"""The live page in a headless Chromium: it follows runs, sorts, filters, compares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium
from made_runs import grow, history, served, write_run, write_study

from ocar.events import Evaluated
from ocar_lab.runs import Run, read_run
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS

pytestmark = pytest.mark.long

pytest.importorskip("plotly", reason="plotly is not installed")

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
EVENTS = history(np.random.default_rng(5), [30, 30, 30])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def with_rate(run: Run, lr: float) -> None:
    """Make it a run with another learning rate, and so of another configuration."""
    path = run.path / CONFIG
    document = json.loads(path.read_text(encoding="utf-8"))
    document |= {"hash": f"{lr:.8f}", "changed": {"lr": lr}}
    document["config"]["settings"] = {"lr": lr}
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two benchmarks, methods and learning rates, a run that goes on, a broken one, a study."""
    rng = np.random.default_rng(0)
    for lr in (0.1, 0.01):
        for seed in range(2):
            with_rate(write_run(tmp_path / f"lr-{lr}", history(rng, [20, 20]), seed=seed), lr)
    with_rate(write_run(tmp_path, history(rng, [20, 20]), label="ocar"), 0.1)
    write_run(tmp_path, history(rng, [10, 10]), benchmark="other")
    running = write_run(tmp_path / "now", EVENTS[:10], seed=7, finished=False)
    (running.path / STATUS).write_text('{"state": "running", "batches": 90}', encoding="utf-8")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / METRICS).write_text("", encoding="utf-8")
    space = {"lr": {"low": 0.01, "high": 1.0, "log": True}, "passes": {"values": [1, 2, 5]}}
    drawn = [{"lr": 0.01 + 0.03 * i, "passes": (1, 2, 5)[i % 3]} for i in range(24)]
    write_study(tmp_path / "studies", space, [(own, 1 - own["lr"]) for own in drawn])
    return tmp_path


@pytest.fixture
def opened(browser: Any, folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, drawn; afterwards nothing may have gone wrong."""
    context = browser.new_context(**getattr(request, "param", {}))
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type != "log" else None)
    with served(folder) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        yield page
        assert wrong == []
        context.close()


def shown(page: Any, column: int) -> list[str]:
    """The texts of a column of the runs that are shown."""
    script = "(rows, n) => rows.filter(r => !r.hidden).map(r => r.cells[n].innerText.trim())"
    found: list[str] = page.locator("#runs tbody tr[data-run]").evaluate_all(script, column)
    return found


def reaches(page: Any, figure: str) -> float:
    """The last time in a figure."""
    script = "id => Math.max(...document.querySelector(id + ' .plot').data.flatMap(t => t.x))"
    last: float = page.evaluate(script, f"#{figure}")
    return last


def row(page: Any, **attributes: str) -> Any:
    return page.locator("#runs tbody tr[data-run]", **attributes)


def running(folder: Path) -> Run:
    """The run that goes on."""
    return read_run(folder / "now" / "split-digits" / "er" / "seed-7")


def test_the_page_follows_a_run_without_reload(opened: Any, folder: Path) -> None:
    opened.evaluate("window.same = 'page'")
    assert opened.title().startswith("1 running, ocar watch: ")
    place = opened.locator("section[data-section]", has_text="split-digits").first
    figure = place.locator("figure[data-key=accuracy]").get_attribute("id")
    before = opened.evaluate(f"document.querySelector('#{figure} .plot').data.length")
    cell = row(opened, has_text="running")
    assert "11 % (10 of 90)" in cell.inner_text()
    # What the reader has chosen stays: an open part, a method, a filter, the focus.
    summary = place.locator("details summary").first
    summary.click()
    place.locator(".pick input").nth(1).uncheck()
    opened.locator("#filters input").fill("split-digits")
    boxes = opened.locator("#runs th button")
    boxes.nth(2).focus()
    for stop in (40, 70):  # into the second task, and into the third
        grow(running(folder), EVENTS[{40: 10, 70: 40}[stop] : stop])
        opened.wait_for_function(
            "n => document.querySelector('#runs').innerText.includes(n)", arg=f"({stop} of 90)"
        )
    assert opened.evaluate("window.same") == "page"
    assert opened.evaluate("document.activeElement.textContent") == "seed"
    assert opened.locator("#filters input").input_value() == "split-digits"
    assert place.locator("details").first.get_attribute("open") is not None
    assert not place.locator(".pick input").nth(1).is_checked()
    assert reaches(opened, figure) > 2
    after = opened.evaluate(f"document.querySelector('#{figure} .plot').data.length")
    assert after == before - 2  # the method that was unticked: its band and its line
    assert "Last change at" in opened.locator("#live").inner_text()
    # A run that begins is a row more; one that ends is finished.
    write_run(folder / "later", history(np.random.default_rng(9), [20, 20]), label="mir")
    opened.wait_for_function("document.querySelector('#runs').innerText.includes('8 runs')")
    assert row(opened, has_text="mir").count() == 1


def test_a_server_that_is_gone_is_told_and_found_again(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path, EVENTS)
    page = browser.new_page()
    with served(tmp_path) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        page.route("**/data", lambda route: route.abort())
        page.wait_for_selector("#live.note")
        assert "does not answer" in page.locator("#live").inner_text()
        page.unroute("**/data")
        page.wait_for_selector("#live.quiet")
    page.close()


def test_columns_are_sorted_by_keyboard(opened: Any) -> None:
    header = opened.locator("#runs thead th", has_text="Acc").first
    header.locator("button").focus()
    assert header.locator("button").evaluate("b => getComputedStyle(b).outlineStyle") != "none"
    column = header.evaluate("th => th.cellIndex")
    for order in ("ascending", "descending"):
        opened.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == order
        texts = shown(opened, column)
        numbers = [float(text) for text in texts if text]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert texts[-1] == ""  # the run without a result is last in both
    assert opened.locator("#runs th[aria-sort]").count() == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [("lr=0.1", 3), ("LR=1e-2", 2), ("lr<0.05", 2), ("lr>0.05 ocar", 1), ("seed=7", 1), ("x", 0)],
)
def test_settings_filter_runs_and_figures(opened: Any, text: str, count: int) -> None:
    opened.locator("#filters input").fill(text)
    assert len(shown(opened, 0)) == count
    assert opened.locator("#filters output").inner_text() == f"{count} of 7 runs"
    assert opened.locator("section[data-section]:visible").count() == (1 if count else 0)
    opened.locator("#filters input").fill("")
    assert len(shown(opened, 0)) == 7
    assert opened.locator("section[data-section]:visible").count() == 2


def test_benchmark_method_and_state_are_chosen(opened: Any) -> None:
    for name, choice, count in (
        ("Benchmark", "other", 1),
        ("Method", "ocar", 1),
        ("State", "running", 1),
    ):
        select = opened.locator("#filters").get_by_label(name)
        select.select_option(choice)
        assert len(shown(opened, 0)) == count, name
        select.select_option("")
    opened.locator("#filters").get_by_label("Method").select_option("ocar")
    names = (
        "document.querySelector('section[data-section]:not([hidden]) .plot').data.map(t => t.name)"
    )
    assert set(filter(None, opened.evaluate(names))) == {"ocar (lr=0.1)"}


def test_two_runs_are_shown_side_by_side(opened: Any) -> None:
    opened.locator("#filters input").fill("split-digits lr=0.1")
    boxes = opened.locator("#runs tbody tr:visible input")
    boxes.nth(0).check()
    assert not opened.locator("#pair").is_visible()
    boxes.nth(1).check()
    assert opened.locator("#pair thead th").all_inner_texts()[1:3] == [
        "split-digits er (lr=0.1), seed 0",
        "split-digits er (lr=0.1), seed 1",
    ]
    assert reaches(opened, "pair-figure") == 2
    lines = "document.querySelector('#pair-figure .plot').data.filter(t => t.name).length"
    assert opened.evaluate(lines) == 2
    boxes.nth(2).check()  # the first goes
    names = opened.locator("#pair thead th").all_inner_texts()
    assert "split-digits er (lr=0.1), seed 0" not in names
    assert "split-digits ocar (lr=0.1), seed 0" in names
    cells = opened.locator("#pair tbody tr", has_text="method").locator("td").all_inner_texts()
    assert set(cells[:2]) == {"er", "ocar"}
    acc = opened.locator("#pair tbody tr").filter(has=opened.locator("th", has_text="AAA"))
    one, other, difference = acc.locator("td").all_inner_texts()
    assert float(difference) == pytest.approx(float(other) - float(one), abs=0.01)
    boxes.nth(2).uncheck()
    assert not opened.locator("#pair").is_visible()


def test_a_study_has_its_figures_and_its_trials(opened: Any) -> None:
    part = opened.locator("#study-0")
    assert part.locator("figure[data-kind=parallel] .scatterlayer .trace").count() > 3
    plot = "document.querySelector('#study-0 figure[data-kind=parallel] .plot')"
    places = opened.evaluate(f"{plot}.data.flatMap(t => t.y).filter(y => y !== null)")
    assert len(places) == 24 * 3
    assert 0 <= min(places) <= max(places) <= 1
    bars = "document.querySelector('#study-0 figure[data-kind=importance] .plot').data[0]"
    assert opened.evaluate(f"{bars}.y[0]") == "lr"
    part.locator("summary").click()
    part.get_by_role("button", name="trial", exact=True).click()
    first = part.locator("tbody th").all_inner_texts()
    assert first == [str(number) for number in range(24)]  # as numbers, not as texts


def test_what_is_broken_is_told(opened: Any, folder: Path) -> None:
    assert str(folder / "bad" / CONFIG) in opened.locator(".note").first.inner_text()


@pytest.mark.parametrize(
    "opened", [PHONE, {**PHONE, "color_scheme": "dark"}], ids=["light", "dark"], indirect=True
)
def test_a_phone_shows_all_of_it(opened: Any) -> None:
    opened.locator("#filters input").fill("split-digits")
    for place in (0, 1):
        opened.locator("#runs tbody tr:visible input").nth(place).check()
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    for plot in opened.locator(".plot:visible").all():
        box = plot.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    for button in opened.locator("button:visible, select:visible").all():
        assert button.bounding_box()["height"] >= 24  # as WCAG 2.2 asks for


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.strip("rgb()").split(",")[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    "opened", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True
)
def test_states_can_be_read(opened: Any) -> None:
    paper = opened.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    for state in ("running", "finished"):
        cell = opened.locator(f"td.{state}").first
        assert contrast(cell.evaluate("c => getComputedStyle(c).color"), paper) >= 4.5, state


def test_an_empty_folder_says_how_to_begin(browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    with served(tmp_path / "runs") as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        assert "Runs are written by ocar run" in page.locator("main").inner_text()
        write_run(tmp_path / "runs", EVENTS)
        page.wait_for_selector("figure[data-key=accuracy] svg.main-svg")
    assert wrong == []
    page.close()


def test_numbers_of_a_grown_run_are_those_of_the_file(opened: Any, folder: Path) -> None:
    added: list[Evaluated] = EVENTS[10:55]
    grow(running(folder), added)
    opened.wait_for_function("document.querySelector('#runs').innerText.includes('(55 of 90)')")
    opened.locator("#filters input").fill("seed=7")
    box = opened.locator("#runs tbody tr:visible input").first
    box.check()
    opened.locator("#filters input").fill("seed=0 lr=0.01")
    opened.locator("#runs tbody tr:visible input").first.check()
    script = "document.querySelector('#pair-figure .plot').data.filter(t => t.name)[0].y"
    drawn = opened.evaluate(script)
    wanted = [100 * event.accuracy for event in EVENTS[:55]]
    assert drawn == pytest.approx(wanted, abs=0.01)
