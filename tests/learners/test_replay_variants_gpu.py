"""ER + LwF, MIR and RAR do the same recorded as CUDA graphs and eagerly, in double precision."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import ocar
from ocar.learner import Learner
from ocar.methods.registry import make_settings
from ocar.models.resnet import SlimResNet18

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = SlimResNet18(width=4, classes=4).to("cuda", torch.float64)
    return Learner(model, own, transform=rewriting, record=record)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """New classes every now and then: 4 units become 8, then 16."""
    generator = torch.Generator().manual_seed(1)
    result = []
    for index in range(count):
        known = 2 + index // 4
        x = torch.randint(0, 256, (6, 3, 32, 32), generator=generator, dtype=torch.uint8)
        y = torch.randint(max(0, known - 3), known, (6,), generator=generator)
        result.append((x.cuda(), y))
    return result


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
