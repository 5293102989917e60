"""Every link within the documentation leads somewhere, before and after it is built."""

from __future__ import annotations

import pkgutil
import posixpath
import re
from pathlib import Path

import pytest
from docs_pages import ROOT, anchors, links, written_pages

OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = [*written_pages(), *OTHERS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a build makes, by its path in the repository."""
    from figures import PICTURES, THEMES
    from generated import write_generated

    folder = tmp_path_factory.mktemp("docs")
    write_generated(folder)
    pages = {
        f"docs/{path.relative_to(folder).as_posix()}": path.read_text(encoding="utf-8")
        for path in folder.rglob("*.md")
    }
    pictures = {
        f"docs/_generated/figures/{name}-{theme}.svg": "" for name in PICTURES for theme in THEMES
    }
    return pages | pictures


def dead_links(page: str, text: str, made: dict[str, str]) -> list[str]:
    """Links of a page that lead nowhere."""
    dead = []
    for link in links(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (
            posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        )
        there = path in made or (ROOT / path).exists()
        if there and anchor and path.endswith(".md"):
            content = made.get(path) or (ROOT / path).read_text(encoding="utf-8")
            there = anchor in anchors(content)
        if not there:
            dead.append(f"{page}: {link}")
    return dead


def test_links_of_written_pages(made: dict[str, str]) -> None:
    dead = [
        problem
        for path in PAGES
        for problem in dead_links(
            path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"), made
        )
    ]
    assert dead == []


def test_links_of_generated_pages(made: dict[str, str]) -> None:
    # The pieces are included by pages of docs/ itself, and their links are meant from there.
    dead = [
        problem
        for page, text in made.items()
        for problem in dead_links(page.replace("_generated/", ""), text, made)
    ]
    assert dead == []


def test_every_page_is_in_the_navigation(made: dict[str, str]) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs") for path in written_pages()[1:]]
    missing = [p for p in pages if f"\n{p.with_suffix('').as_posix()}\n" not in index]
    assert [str(p) for p in missing] == ["index.md"]


def test_names_of_the_code_are_documented() -> None:
    texts = [path.read_text(encoding="utf-8") for path in written_pages()]
    modules = {name for text in texts for name in re.findall(r"automodule:: (\S+)", text)}
    targets = {name for text in texts for name in re.findall(r"\{py:\w+\}`[^`]*?([\w.]+)>?`", text)}
    assert targets
    for target in targets:
        assert pkgutil.resolve_name(target) is not None
        assert target in modules or target.rpartition(".")[0] in modules, target


def test_files_that_a_page_names_exist() -> None:
    folders = "benchmarks|docs|examples|experiments|src|tests|tools"
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(rf"(?<![\w./])((?:{folders})/[\w./-]+\.(?:ipynb|md|py))\b", text)
        missing = [name for name in named if not (ROOT / name).exists()]
        assert missing == [], page.name


def test_the_architecture_names_every_package_and_module() -> None:
    page = (ROOT / "docs" / "tree.md").read_text(encoding="utf-8")
    layout = page.partition("## Layout")[2].partition("## ")[0]
    for package in ("ocar", "ocar_lab"):
        inside = layout.partition(f"src/{package}/")[2].partition("\nsrc/")[0]
        names = {re.sub(r"\.py$", "", p.name) for p in (ROOT / "src" / package).glob("[a-z]*")}
        missing = {name for name in names if not re.search(rf"\b{name}\b", inside)}
        assert missing <= {"py.typed"}


def test_the_check_of_a_built_site(tmp_path: Path) -> None:
    from check_site import problems

    (tmp_path / "index.html").write_text('<a href="a.html#here">a</a><a href="https://x.org">x</a>')
    (tmp_path / "a.html").write_text('<p id="here"><a href="index.html">back</a></p>')
    assert problems(tmp_path) == []
    (tmp_path / "a.html").write_text('<a href="gone.html">1</a><script src="https://x.org/a.js">')
    (tmp_path / "lost.html").write_text("")
    assert problems(tmp_path) == [
        "a.html links to gone.html, which is not there",
        "a.html loads https://x.org/a.js",
        "index.html links to a.html#here, which has no such place",
        "no page leads to lost.html",
    ]
