"""A short table of the curvature of each parameter."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

NONE = "none, plain gradient"
"""What the table calls the curvature of the other parameters."""

_SHOWN = 3  # names in a row


def share(model: nn.Module, kinds: Mapping[str, str]) -> float:
    """The share of the trainable numbers of a model that have curvature.

    ``kinds`` has the kind of curvature of each parameter that has one, by name.
    """
    sizes = _sizes(model)
    return sum(sizes[name] for name in kinds) / max(1, sum(sizes.values()))


def table(model: nn.Module, kinds: Mapping[str, str]) -> str:
    """One row for each kind of curvature; takes what :func:`share` takes."""
    sizes = _sizes(model)
    total = sum(sizes.values())
    rows = [("curvature", "numbers", "share", "parameters")]
    for kind in dict.fromkeys([*kinds.values(), NONE]):
        names = [name for name in sizes if kinds.get(name, NONE) == kind]
        if names:
            count = sum(sizes[name] for name in names)
            more = f", … ({len(names)})" if len(names) > _SHOWN else ""
            listed = ", ".join(names[:_SHOWN]) + more
            rows.append((kind, f"{count:,}", f"{100 * count / total:.1f} %", listed))
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{kind:<{wide[0]}}  {count:>{wide[1]}}  {part:>{wide[2]}}  {names}"
        for kind, count, part, names in rows
    )


def _sizes(model: nn.Module) -> dict[str, int]:
    return {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
