"""One rank on its own device, on a GPU with NCCL: it learns as a learner without ranks does.

Arguments: the number of batches, then cases such as ``"ocar mlp"``.
"""

from __future__ import annotations

import sys
import warnings

import torch
from rank_cases import learn, make_learner, make_stream, parse
from rank_rounded import errors
from torch import Tensor, nn

import ocar
from ocar.accel.shared_norm import synchronized_norms

TOLERANCE = 1e-6
"""Relative error of a tensor, by norms: some of a GPU's numbers are float32."""


def check(case: str, count: int, ranks: ocar.Ranks) -> None:
    """Compare the whole state with those of eager and of recorded steps."""
    method, model, settings = parse(case)
    stream = make_stream(model, count)

    def learned(own: ocar.Ranks | None, *, record: bool) -> tuple[dict[str, Tensor], object]:
        learner = make_learner(method, model, own, device=ranks.device, record=record, **settings)
        tensors, values = learn(learner, stream).state()
        if ranks.device.type == "cuda":
            assert learner._steps.graph.enabled == (record and own is None)
        kept = {n: t.double().cpu() for n, t in tensors.items() if "generator.model" not in n}
        return kept, values

    found, values = learned(ranks, record=True)  # ranks leave out the recording
    for name, record in (("eager", False), ("recorded", True)):
        wanted, others = learned(None, record=record)
        assert values == others, f"{case}, {name}"
        assert found.keys() == wanted.keys(), f"{case}, {name}"
        for key, tensor in wanted.items():
            error = (found[key] - tensor).norm() / tensor.norm().clamp_min(1e-12)
            assert error < TOLERANCE, f"{case}, {name}: {key} differs by {error}"
    print(f"{case}: same with memory {ranks.memory}", flush=True)


def check_norm(ranks: ocar.Ranks) -> None:
    """Compare BatchNorm over ranks, in which passes of one rank take no part, with PyTorch's."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5, 5, dtype=torch.float64, device=ranks.device, requires_grad=True)
    norms = [nn.BatchNorm2d(3).to(x) for _ in range(2)]
    with synchronized_norms(norms[1:], ranks):
        outputs = [norm(x) for norm in norms]
    weights = torch.randn_like(x)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in outputs]
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(norms[1].running_var, norms[0].running_var)
    print("batchnorm: same", flush=True)


def check_rounded(count: int) -> None:
    """Send factors with 16 bits: one rank rounds each number once, and learns."""
    found = errors()
    assert found.pop("zero.A") == 0
    assert all(0 < error <= 2**-11 for error in found.values()), found
    ranks = ocar.Ranks(timeout=100, factor_dtype="float16")
    learner = make_learner("ocar", "groupnorm", ranks, device=ranks.device)
    learn(learner, make_stream("groupnorm", count))
    assert learner.guarded.skipped == 0
    print("factors: rounded", flush=True)


def main() -> None:
    warnings.simplefilter("default")  # CUDA warns of a lot
    count, *cases = sys.argv[1:]
    placements = [
        ocar.Ranks(timeout=100, memory="replicated", inverses="broadcast"),
        ocar.Ranks(timeout=100, memory="sharded", inverses="sharded"),
    ]
    for ranks in placements:
        for case in cases:
            check(case, int(count), ranks)
    check_norm(ranks)
    check_rounded(int(count))
    backend = ranks._group._get_backend(ranks.device)
    assert all(ranks.traffic.messages[kind] for kind in ("gather", "sum", "broadcast"))
    print(f"backend: {backend.name()}", flush=True)


if __name__ == "__main__":
    main()
