"""Control flow, wrappers and hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.parts import Group, Net, head, mlp

zoo = Group("control flow, wrappers and hooks")


class Straight(torch.autograd.Function):
    """Signs forward, the identity backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The signs."""
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is stored."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        """The gradient as it is."""
        return grad


def routed() -> nn.Module:
    """Each sample goes through the expert with the largest score."""

    def run(m: Any, x: Tensor) -> Tensor:
        scores = m.gate(x).softmax(1)
        hidden = torch.stack([expert(x) for expert in m.experts], 1).relu()
        chosen = scores.argmax(1)
        rows = torch.arange(len(x))
        outputs: Tensor = m.head(hidden[rows, chosen] * scores[rows, chosen, None])
        return outputs

    experts = nn.ModuleList(nn.Linear(6, 16) for _ in range(3))
    return Net(run, gate=nn.Linear(6, 3), experts=experts, head=head())


def early_exit() -> nn.Module:
    """A second layer only for batches with large inputs."""

    def run(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x).relu()
        if float(x.abs().mean()) > 1.4:
            hidden = m.b(hidden).relu()
        outputs: Tensor = m.head(hidden)
        return outputs

    return Net(run, a=nn.Linear(6, 16), b=nn.Linear(16, 16), head=head())


class DataParallelLike(nn.Module):
    """A wrapper that splits the batch, calls the module on each part and joins the outputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all parts."""
        return torch.cat([self.module(part) for part in x.chunk(2)])


def hooked(add: Callable[[nn.Sequential], object]) -> nn.Module:
    """A network with a hook."""
    model = mlp()
    add(model)
    return model


def compiled(model: nn.Module) -> nn.Module:
    """By a backend that needs no compiler of C++."""
    made: Any = torch.compile(model, backend="aot_eager")
    return made  # type: ignore[no-any-return]


def compiled_in_place() -> nn.Module:
    """The same, by ``model.compile()``."""
    model = mlp()
    model.compile(backend="aot_eager")
    return model


def counting(**options: Any) -> nn.Module:
    """A running mean of its own, in a buffer that decides the outputs."""

    def run(m: Any, x: Tensor) -> Tensor:
        if m.training:
            m.mean.lerp_(x.detach().mean(0), 0.1)
            m.calls.add_(1)
        outputs: Tensor = m.inner(x - m.mean)
        return outputs

    mean, calls = (
        nn.Buffer(torch.zeros(6), **options),
        nn.Buffer(torch.zeros((), dtype=torch.int64)),
    )
    return Net(run, inner=mlp(), mean=mean, calls=calls)


zoo(
    "mixture of experts",
    lambda: Net(
        lambda m, x: m.head(
            (m.gate(x).softmax(1).unsqueeze(2) * m.experts(x).view(-1, 3, 16)).sum(1).relu()
        ),
        gate=nn.Linear(6, 3),
        experts=nn.Linear(6, 48),
        head=head(),
    ),
)
zoo("experts, one for each sample", routed)
zoo("a layer that some batches skip", early_exit)
zoo(
    "straight-through estimator",
    lambda: Net(lambda m, x: m.head(Straight.apply(m.a(x))), a=nn.Linear(6, 16), head=head()),
)
zoo(
    "gradient checkpointing",
    lambda: Net(
        lambda m, x: m.head(checkpoint(m.inner, x, use_reentrant=False)),
        inner=nn.Sequential(nn.Linear(6, 16), nn.ReLU()),
        head=head(),
    ),
)
zoo(
    "einsum on parameters",
    lambda: Net(
        lambda m, x: m.head(torch.einsum("ni,ijo->no", x, m.w).relu()),
        w=nn.Parameter(torch.randn(6, 2, 16) / 4),
        head=head(),
    ),
)
zoo(
    "DataParallel",
    lambda: nn.DataParallel(mlp()),
    refused="is spread over devices or processes by DataParallel",
)
zoo(
    "wrapper that splits the batch",
    lambda: DataParallelLike(mlp()),
    ocar="Its curvature needs as many rows for each sample",
)
zoo(
    "forward hook",
    lambda: hooked(lambda m: m[0].register_forward_hook(lambda module, args, out: out * 1.1)),
)
zoo(
    "forward pre-hook",
    lambda: hooked(lambda m: m[2].register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))),
)
zoo(
    "backward hook",
    lambda: hooked(
        lambda m: m[1].register_full_backward_hook(lambda module, grads, outer: (grads[0] * 0.5,))
    ),
)
zoo(
    "hook on a gradient",
    lambda: hooked(lambda m: m[0].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))),
)
zoo(
    "replaced forward method",
    lambda: hooked(lambda m: setattr(m[1], "forward", lambda x: x.tanh())),
)
zoo("buffers that change", counting)
zoo("buffers that change and are not saved by PyTorch", lambda: counting(persistent=False))
zoo("torch.compile", lambda: compiled(mlp()), ocar="is compiled")
zoo("model.compile()", compiled_in_place, ocar="is compiled")
