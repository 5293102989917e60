"""ER + LwF, MIR and RAR do the same recorded as CUDA graphs and eagerly, in double precision."""

from __future__ import annotations

import warnings

import pytest
import torch
from gpu_toys import batches, network
from torch import nn

import ocar
from ocar.learner import Learner
from ocar.methods.registry import make_settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

CASES = {
    "er-lwf": ("er-lwf", None, {}),
    "er-lwf-paper": ("er-lwf", None, {"distilled": "paper", "teacher": "labels"}),
    "er-lwf-batches": (
        "er-lwf",
        None,
        {"teacher": "batches", "refresh": 5, "teacher_mode": "eval"},
    ),
    "er-lwf-ocar": ("er-lwf", "ocar", {}),
    "mir": ("mir", None, {"subsample": 20}),
    "mir-eval": ("mir", None, {"subsample": 20, "exclude": "none", "scoring": "eval"}),
    "mir-ocar": ("mir", "ocar", {"subsample": 20}),
    "rar": ("rar", None, {"iterations": 3}),
    "rar-paper": ("rar", None, {"iterations": 3, "perturbation": "paper"}),
    "rar-ocar": ("rar", "ocar", {"iterations": 3}),
}


def make(case: str, *, record: bool) -> Learner:
    method, transform, settings = CASES[case]
    more = {} if transform is None else {"tau_step": 1e-6, "ema": 0.2}
    own, rewriting = make_settings(
        method,
        transform=transform,
        lr=0.01 if transform is None else 1e-3,
        memory=40,
        replay_batch=5,
        augment=ocar.CropFlip(),
        **settings,
        **more,
    )
    return Learner(network(), own, transform=rewriting, record=record)


@pytest.mark.parametrize("case", CASES)
def test_recorded_is_eager(case: str) -> None:
    recorded, eager = make(case, record=True), make(case, record=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Going on without CUDA graphs")
        for index, (x, y) in enumerate(batches(40)):
            if index % 10 == 9:
                recorded.boundary()
                eager.boundary()
            ours, theirs = recorded.learn(x, y), eager.learn(x, y)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-6, atol=1e-8)
    assert recorded._steps.graph._recorded
    assert not eager._steps.graph._recorded
    weights = [nn.utils.parameters_to_vector(m.model.parameters()) for m in (recorded, eager)]
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-7)
