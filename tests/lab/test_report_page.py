"""The page in a headless Chromium, as a file and live: it opens, draws, filters."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium
from made_runs import history, served, write_run
from PIL import Image

from ocar.events import Evaluated
from ocar.install import install_line
from ocar_lab.cli import main
from ocar_lab.report.page import make_page
from ocar_lab.report.sections import make_report
from ocar_lab.styles import STYLES

pytestmark = pytest.mark.long

pytest.importorskip("plotly", reason="plotly is not installed")

EVIL = '<script>document.title = "run"</script>'
EVIL_SHORT = EVIL[:33].replace("<", "&lt;").replace(">", "&gt;") + "…"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two benchmarks, one of them regression, one run not finished, one with a bad name."""
    root = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    for seed in range(2):
        write_run(root, history(rng, [30, 40 - seed, 30], every=3), seed=seed)
        events = history(rng, [30, 40, 30])
        reported = [{"tau": 0.1 + i, "replay_weight": 1.0, "norm_ratio": 0.5} for i in range(100)]
        write_run(root, events, label="ocar", seed=seed, reported=reported)
    write_run(root, history(rng, [30, 5]), seed=2, finished=False)
    evil = root / "evil"
    command = ("ocar", "run", EVIL)
    run = write_run(evil, history(rng, [30, 40]), label="x", command=command, note=EVIL)
    config = run.path / "config.json"
    text = config.read_text(encoding="utf-8").replace(
        '"label": "x"', f'"label": {json.dumps(EVIL)}'
    )
    config.write_text(text, encoding="utf-8")
    losses = [
        Evaluated(correct=(), sizes=(), index=i, task=i // 5, seconds=i, l_p=i, l_s=2 * i)
        for i in range(20)
    ]
    write_run(root, losses, benchmark="convex")
    return root


@pytest.fixture(scope="module")
def page_file(folder: Path) -> Path:
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module", params=["report", "watch"])
def address(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Where the page is: in a file, or on a server."""
    if request.param == "report":
        yield request.getfixturevalue("page_file").as_uri()
    else:
        with served(folder) as port:
            yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def opened(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, drawn; afterwards nothing may have gone wrong nor been asked for elsewhere."""
    context = browser.new_context(**getattr(request, "param", {}))
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type != "log" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    yield page
    assert wrong == []
    assert {url for url in asked if not url.startswith("data:")} <= {address, f"{address}data"}
    context.close()


def names(page: Any, figure: str) -> list[str]:
    """The lines of a figure that are drawn."""
    script = "id => document.querySelector(id + ' .plot').data.map(t => t.name).filter(Boolean)"
    found: list[str] = page.evaluate(script, f"#{figure}")
    return found


def test_it_opens_and_draws_every_figure(opened: Any) -> None:
    keys = ["accuracy", "gap", "drop", "tau", "replay_weight", "norm_ratio", "time", "heat"]
    for key in keys:
        assert opened.locator(f"#{key}-1 .plot svg.main-svg").count() > 0, key
    assert opened.locator("#loss-0 .plot svg.main-svg").count() > 0
    assert opened.locator("#loss-0 .scatterlayer .trace").count() == 1
    assert opened.locator("#heat-1 .heatmaplayer image").count() == 1
    assert "Not finished: 1 of 6 runs (1 stopped)" in opened.locator(".note").inner_text()
    assert opened.locator("#section-1 details pre").first.inner_text() == ""  # closed


def test_methods_and_tasks_are_chosen_with_the_keyboard(opened: Any) -> None:
    assert set(names(opened, "accuracy-1")) == {"er", "ocar", EVIL_SHORT}
    box = opened.locator("#section-1 .pick label", has_text="ocar").locator("input")
    box.focus()
    opened.keyboard.press("Space")
    assert set(names(opened, "accuracy-1")) == set(names(opened, "time-1")) == {"er", EVIL_SHORT}
    assert names(opened, "tau-1") == []
    first = "document.querySelector('#accuracy-1 .plot').data.at(-1).x[0]"
    assert opened.evaluate(first) < 1
    opened.locator("#accuracy-1 select").focus()
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    shown = opened.locator("#accuracy-1 select").evaluate("s => s.selectedOptions[0].text")
    assert shown == "Task 2"
    assert opened.evaluate(first) > 1  # it begins with the second task


def test_a_point_says_mean_and_deviation(opened: Any) -> None:
    plot = opened.locator("#accuracy-1 .plot")
    plot.scroll_into_view_if_needed()
    around = plot.bounding_box()
    opened.mouse.move(around["x"] + around["width"] / 2, around["y"] + around["height"] / 2)
    opened.wait_for_selector("#accuracy-1 .hoverlayer .legend")
    assert " ± " in opened.locator("#accuracy-1 .hoverlayer").text_content()


def test_what_comes_from_files_is_text(opened: Any) -> None:
    assert re.match(r"ocar (report|watch): ", opened.title())
    assert EVIL in opened.locator("#section-1 table").first.inner_text()
    assert opened.locator("#section-1 script").count() == 0
    opened.locator("#section-1 details summary", has_text="script").click()
    opened_text = opened.locator("#section-1 details[open]").inner_text()
    assert opened_text.count(EVIL) >= 2


def test_tab_reaches_the_skip_link_first(opened: Any) -> None:
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.keyboard.press("Enter")
    assert opened.evaluate("location.hash") == "#main"


PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
def test_on_a_phone_nothing_but_tables_is_wider_than_the_screen(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.locator("#accuracy-1 .plot").bounding_box()["width"] <= 360


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
def test_on_a_phone_every_column_of_a_table_can_be_reached(opened: Any) -> None:
    tables = opened.locator(".scroll:visible")
    for place in range(tables.count()):
        table = tables.nth(place)
        table.evaluate("t => t.scrollTo(10000, 0)")
        last = table.locator("thead th").last.bounding_box()
        assert last["x"] + last["width"] <= 360
        first = table.locator("thead th").first.bounding_box()
        assert first["x"] + first["width"] <= 0.5 * 360  # it stays, and leaves room for others


def test_no_axis_goes_beyond_what_there_can_be(opened: Any) -> None:
    bounds = {"accuracy": (0, 100), "gap": (-100, 100), "drop": (0, 100), "time": (0, None)}
    for key, (low, high) in bounds.items():
        plot = f"document.querySelector('#{key}-1 .plot')"
        shown = opened.evaluate(f"{plot}._fullLayout.yaxis.range")
        drawn = opened.evaluate(f"{plot}.data.flatMap(t => t.y).filter(y => y !== null)")
        assert min(shown[0], *drawn) >= low, key
        assert high is None or max(shown[1], *drawn) <= high, key
        ticks = opened.locator(f"#{key}-1 .ytick text").all_text_contents()
        numbers = [float(text.replace("−", "-")) for text in ticks]
        assert len(numbers) > 1
        assert min(numbers) >= low, key
        assert high is None or max(numbers) <= high, key


def test_tasks_and_evaluations_are_counted_in_whole_numbers(opened: Any) -> None:
    for key in ("accuracy", "heat", "gap", "drop", "tau", "time"):
        ticks = opened.locator(f"#{key}-1 .xtick text").all_text_contents()
        assert len(ticks) > 1, key
        assert all(re.fullmatch(r"[-−]?\d+", text) for text in ticks), (key, ticks)


SCHEMES = [{"color_scheme": "light"}, {"color_scheme": "dark"}, PHONE]


@pytest.mark.parametrize("opened", SCHEMES, ids=["light", "dark", "phone"], indirect=True)
def test_no_stripe_goes_through_the_heat_map(opened: Any) -> None:
    # The seeds have 99 and 100 batches, evaluated after each third.
    paper = opened.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    background = np.array([int(part) for part in re.findall(r"\d+", paper)[:3]])
    opened.locator("#heat-1 select").select_option(label="er")
    image = opened.locator("#heat-1 .heatmaplayer image")
    image.evaluate("i => i.scrollIntoView({block: 'end'})")  # the methods stay above it
    pixels = np.asarray(Image.open(io.BytesIO(image.screenshot())).convert("RGB")).astype(int)
    height, width = pixels.shape[:2]
    for task in range(3):
        row = pixels[int((task + 0.5) / 3 * height)]
        empty = np.abs(row - background).max(axis=1) < 8
        begun = round(task / 3 * width)
        assert not empty[begun + 2 : -2].any(), f"task {task + 1}"
        assert empty[2 : max(2, begun - 2)].all(), f"task {task + 1}"


def test_the_page_begins_with_what_came_out(opened: Any) -> None:
    headlines = opened.locator(".headline").all_inner_texts()
    assert headlines[0].startswith("convex L_p of er ")
    assert headlines[1].startswith("split-digits Best Acc: ")
    table = opened.locator("#section-1 table").first
    assert table.locator("tbody td b").count() > 0
    said = opened.locator("#section-1 .terms").first.inner_text()
    assert "Acc accuracy on test data after the last batch" in said


def test_colours_follow_the_scheme(opened: Any) -> None:
    script = "document.querySelector('#accuracy-1 .plot').data.at(-1).line.color"
    light = opened.evaluate(script)
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_function(f"{script} !== '{light}'")
    assert opened.evaluate("getComputedStyle(document.documentElement).backgroundColor") == (
        "rgb(21, 23, 26)"
    )


def test_the_page_names_no_other_place(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    bare = re.sub(r'<script type="text/plain".*?</script>', "", text, flags=re.S)
    assert not re.search(r"https?://|//[a-z]+\.", bare)
    assert bare.count(EVIL) == 0
    assert text.count("<script") == 3


def test_json_are_the_numbers_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["benchmark"] for s in document["sections"]] == ["convex", "split-digits"]
    assert document["sections"][1]["figures"][0]["key"] == "accuracy"


def test_without_plotly_the_error_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", str(folder), "--out", str(folder / "other.html")]) == 1
    assert install_line("report") in capsys.readouterr().err
    assert not (folder / "other.html").exists()


def test_wrong_calls_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "no runs" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--json", "--out", "x"]) == 2


def test_a_report_without_runs_over_time_is_a_page(tmp_path: Path) -> None:
    assert "<h2>What was run</h2>" in make_page(make_report([], title="t", created="now"))


def test_a_line_has_the_style_of_the_figures(opened: Any) -> None:
    script = (
        "document.querySelector('#accuracy-1 .plot').data.filter(t => t.name === 'er')"
        ".map(t => [t.line.color, t.line.dash, t.marker.symbol])[0]"
    )
    style = STYLES["er"]
    dashes = ",".join(f"{2 * length:g}px" for length in style.dashes)
    assert opened.evaluate(script) == [style.colour.light, dashes, style.marker]
