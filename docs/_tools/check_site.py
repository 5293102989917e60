"""Look for dead links in a built site, for pages that no other leads to, and for anything foreign.

    python docs/_tools/check_site.py build/site

Every link within the site must lead to a file and, where it names one, to an element. A page may
link to other sites; it may not load anything from them.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser fetches by itself, and the attribute that says from where."""

OPENED_OTHERWISE = {"genindex.html", "py-modindex.html", "search.html", "404.html"}
"""Pages that a reader reaches by other means than a link in the text."""


class Page(HTMLParser):
    """The links and the named elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element is called and where it leads."""
        given = {name: value for name, value in attrs if value is not None}
        self.names.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])


def problems(site: Path) -> list[str]:
    """What is wrong with a site, one line each.

    Args:
        site: Its folder.
    """
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found, reached = [], {site / "index.html"}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{name} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{name} links to {link}, which is not there")
                continue
            if target != path:
                reached.add(target)
            wanted = unquote(parts.fragment)
            if wanted and target in pages and wanted not in pages[target].names:
                found.append(f"{name} links to {link}, which has no such place")
    lost = [path for path in pages if path not in reached and path.name not in OPENED_OTHERWISE]
    return found + [f"no page leads to {path.relative_to(site)}" for path in lost]


def main() -> int:
    """The command line."""
    found = problems(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "every link leads somewhere, and nothing is fetched from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
