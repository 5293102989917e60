"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_tools"))

from docstrings import keep_attribute, literal_formulas  # noqa: E402
from figures import draw_all  # noqa: E402
from generated import write_generated  # noqa: E402
from story import write_story  # noqa: E402

from ocar.version import __version__  # noqa: E402

project = "ocar"
author = "The ocar developers"
project_copyright = "The ocar developers, MIT licence"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated", "_tools"]
root_doc = "index"

# Markdown: headings can be linked to, `:::` opens a box, a fence may be followed by words.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

# The reference: everything in the order of the source, types in the signature.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# The theme brings all that it needs: no font, script or style is fetched from elsewhere.
html_theme = "furo"
html_title = f"ocar {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_tools" / "search.js")
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "light_css_variables": {
        "color-brand-primary": "#0b5394",
        "color-brand-content": "#0b5394",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db7f0",
        "color-brand-content": "#7db7f0",
    },
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def make_pages(app: Any) -> None:
    """Make pages and pictures before Sphinx looks for its sources."""
    write_generated(HERE)
    draw_all(HERE)
    write_story(HERE)


def setup(app: Any) -> None:
    """What Sphinx calls first."""
    app.connect("builder-inited", make_pages)
    app.connect("autodoc-process-docstring", keep_attribute, priority=100)
    app.connect("autodoc-process-docstring", literal_formulas, priority=900)
