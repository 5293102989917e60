"""Pages that are made from the registry, the presets and ``results/``, so that they cannot drift.

They are written anew at every build: ``docs/methods/``, one page a method, and the pieces under
``docs/_generated/`` that other pages include.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from authors_pages import authors_table
from backbone_pages import backbone_tables
from bench_pages import bench_tables, read_bench, targets
from method_pages import method_page, methods_index, slug
from model_pages import model_shares_table, model_zoo_table
from options import command_line
from reliability_pages import fuzz_table, hostile_streams_table, long_streams_table, presets_table
from result_pages import (
    RESULTS,
    benchmarks_table,
    comparison_table,
    pictures_table,
    results_tables,
    said_by,
    spectrum_sentence,
)
from series_pages import series_cost, series_tables
from serving_pages import load_table
from slow_pages import cost_table, heads_table, others_table, parts_table, slow_table
from source_pages import method_files, operations_table
from tabular_pages import tables_pieces

from ocar.methods.registry import METHODS
from ocar_lab.runs import read_result, result_files


def write_generated(docs: Path) -> None:
    """Write every page and piece.

    Args:
        docs: The folder of the documentation.
    """
    results = [read_result(path) for path in result_files(RESULTS)]
    pages = {f"{slug(name)}.md": method_page(name, results) for name in METHODS}
    _write_folder(docs / "methods", {"index.md": methods_index(), **pages})
    _write_folder(
        docs / "_generated",
        {
            "authors-details.md": authors_table(results),
            "benchmarks.md": benchmarks_table(),
            "command-line.md": command_line(),
            "gallery-series.md": series_tables(),
            "gallery-series-cost.md": series_cost(),
            "gallery-backbone.md": backbone_tables(),
            "hostile-streams.md": hostile_streams_table(),
            "presets-guarded.md": presets_table(),
            "fuzz.md": fuzz_table(),
            "long-streams.md": long_streams_table(),
            "method-files.md": method_files(),
            "model-shares.md": model_shares_table(),
            "model-zoo.md": model_zoo_table(),
            "operations.md": operations_table(),
            "slow-weights.md": slow_table(results),
            "slow-weights-others.md": others_table(results),
            "slow-weights-cost.md": cost_table(),
            "slow-weights-heads.md": heads_table(results),
            "slow-weights-parts.md": parts_table(results),
            "pictures.md": pictures_table(),
            "serving-load.md": load_table(),
            "spectrum.md": spectrum_sentence(),
            "paper-check.md": said_by("paper", "check", "--markdown"),
            "paper-clear.md": said_by("paper", "clear", "--markdown"),
            "paper-table1.md": said_by("paper", "table1", "--markdown"),
            "paper-times.md": said_by("paper", "times", "--markdown"),
            "results.md": results_tables(results),
            "split-mnist.md": comparison_table("split-mnist"),
            "targets.md": targets(read_bench()),
            **tables_pieces(),
            "bench.md": bench_tables(read_bench()),
        },
    )


def _write_folder(folder: Path, texts: Mapping[str, str]) -> None:
    """Make the folder hold these files and no others; what has not changed is not touched."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
