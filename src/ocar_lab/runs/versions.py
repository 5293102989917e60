"""What earlier versions did otherwise, so that their stored runs are found and named rightly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocar.methods.presets import PRESETS

ADDED: dict[str, Any] = {
    "standardize": False,
    "max_cost": 1.5,
    "exclude": [],
    "include": [],
    "slow_rate": 0.008,
    "slow_warmup": 20.0,
    "slow_every": "batch",
    "slow_statistics": "own",
    "distillation": 0.0,
    "distill_on": "all",
    "distill_temperature": 1.0,
    "distill_curvature": False,
    "closed_form_head": False,
    "mirror": "instead",
    "logit_adjustment": 0.0,
    "new_share": None,
    "degrees_of_freedom": 5.0,
    "factor_scale": "none",
    "head_size": "classes",
}
"""Settings that an earlier version did not have, with the value that changes none of its runs. They
are then no part of the identity, so that the runs are found again."""

EARLIER: dict[str, Any] = {
    "factor_scale": "none",
    "head_size": "classes",
    "replay": "fresh",
    "replay_batch": 10,
    "closed_form_head": False,
    "passes": 9,
}
"""Settings that presets have changed, with the values of earlier presets. The first three follow
the authors' code now, the others are of ``ocar-slow``."""


GONE: dict[str, Any] = {"slow_share": None}
"""Settings that only an earlier version had, with the value that changed none of its runs."""


def earlier_settings(changed: Mapping[str, Any]) -> dict[str, Any]:
    """The changed settings that are those of an earlier preset."""
    return {n: v for n, v in changed.items() if n in EARLIER and v == EARLIER[n]}


def changed_since(config: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a stored run that differ from the present preset.

    Args:
        config: The identity of the run.
        changed: Settings that differed from the preset of its time.
    """
    changed = {n: v for n, v in changed.items() if n not in GONE or v != GONE[n]}
    preset = PRESETS.get(config["benchmark"], {}).get(config.get("method", ""), {})
    if "defaults" in changed or "settings" not in config or preset.keys().isdisjoint(EARLIER):
        return dict(changed)
    own = {**EARLIER, **config["settings"], **(config.get("transform") or {})}
    earlier = {n: v for n, v in EARLIER.items() if n in preset and own[n] == v != preset[n]}
    return earlier | changed
