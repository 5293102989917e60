"""Layers that see the locations of a sample as rows of a longer batch, and other odd uses."""

from __future__ import annotations

import pytest
import torch
from checks import average
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC
from ocar.curvature.fisher import parse_root
from ocar.errors import ConfigError, InputError, ModelError


class Tokens(nn.Module):
    """One linear layer over the tokens of each sample, the tokens folded into the batch or not."""

    def __init__(self, *, fold: bool) -> None:
        super().__init__()
        self.fold = fold
        self.mix = nn.Linear(3, 4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mix(x.flatten(0, 1)).unflatten(0, x.shape[:2]) if self.fold else self.mix(x)
        return self.head(hidden.tanh().mean(1))


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("weighting", ["gradients", "both"])
def test_folded_locations_count_as_locations(sharing: str, weighting: str) -> None:
    x, w = torch.randn(6, 7, 3), torch.rand(6)
    factors = []
    weights = Tokens(fold=False).state_dict()
    for fold in (False, True):
        model = Tokens(fold=fold)
        model.load_state_dict(weights)
        options = {"sharing": sharing, "weighting": weighting, "fisher": "exact"}
        kfac = KFAC(model, damping=0.1, ema=1.0, **options)
        with kfac.record():
            outputs = model(x)
        kfac.update(outputs, weights=w)
        factors.append([average(kfac, "mix", key) for key in ("A", "G")])
    assert_close(factors[1], factors[0], **EXACT)


def test_rows_that_do_not_fit_the_samples_are_refused_by_name() -> None:
    class Selected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.mix(x.repeat(2, 1)[:3])
            return self.head(rows[:2] + rows[2])

    model = Selected()
    kfac = KFAC(model, damping=0.1, ema=1.0)
    with kfac.record():
        outputs = model(torch.randn(2, 3))
    with pytest.raises(
        ModelError, match=r"Layer 'mix' saw 3 rows for 2 samples.*exclude=\['mix'\]"
    ):
        kfac.update(outputs)


def test_the_mask_must_fit_the_outputs() -> None:
    model = nn.Linear(3, 4)
    kfac = KFAC(model, damping=0.1, ema=1.0)
    with kfac.record():
        outputs = model(torch.randn(2, 3))
    with pytest.raises(InputError, match=r"each of the 4 outputs; given shape \(3,\)"):
        kfac.update(outputs, active=torch.ones(3, dtype=torch.bool))


def test_norms_without_any_gradient() -> None:
    kfac = KFAC(nn.Linear(3, 4), damping=0.1, ema=1.0, track_norms=True)
    kfac.precondition_()
    assert kfac.norm_ratio is not None
    assert kfac.norm_ratio.isnan()


@pytest.mark.parametrize(
    "text", ["sketched(4,)", "exact(,)", "sampled()", "sketched(4 independent)", "exact(3)", "top"]
)
def test_almost_a_root_is_no_root(text: str) -> None:
    with pytest.raises(ConfigError, match="Must be one of 'exact'"):
        parse_root(text)
