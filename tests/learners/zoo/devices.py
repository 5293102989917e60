"""Types and devices of parameters and buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.parts import UNITS, Group, Net, head, mlp

zoo = Group("types and devices")


class ExtraState(nn.Sequential):
    """Keeps more in its ``state_dict`` than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        """A dictionary."""
        return {"version": 2}

    def set_extra_state(self, state: Any) -> None:
        """Ignored."""


def mixed() -> nn.Module:
    """A body in bfloat16 and a head in float32."""
    return Net(
        lambda m, x: m.head(m.body(x).float()),
        body=nn.Sequential(nn.Linear(6, 16), nn.ReLU()).bfloat16(),
        head=head(),
    )


def autocast() -> nn.Module:
    """A body that rounds to bfloat16 inside."""

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = m.a(x).relu()
        outputs: Tensor = m.head(hidden.float())
        return outputs

    return Net(run, a=nn.Linear(6, 16), head=head())


def initialised() -> nn.Module:
    """A lazy network that has seen a batch."""
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(UNITS))
    model(torch.zeros(2, 6))
    return model


def made_in_inference_mode() -> nn.Module:
    """Its parameters can never learn."""
    with torch.inference_mode():
        return mlp()


def on_meta() -> nn.Module:
    """A network without numbers."""
    with torch.device("meta"):
        return mlp()


zoo("float64", lambda: mlp().double())
zoo("bfloat16", lambda: mlp().bfloat16())
zoo("float16", lambda: mlp().half())
zoo("bfloat16 with a float32 head", mixed)
zoo("autocast inside", autocast)
zoo(
    "complex weights",
    lambda: Net(
        lambda m, x: m.head((x.to(m.w.dtype) @ m.w).abs()),
        w=nn.Parameter(torch.randn(6, 16, dtype=torch.complex64)),
        head=head(),
    ),
    refused="Net could not be saved: 'w' is of type torch.complex64",
)
zoo(
    "sparse buffer",
    lambda: Net(lambda m, x: m.inner(x), inner=mlp(), table=nn.Buffer(torch.eye(3).to_sparse())),
    refused="Net could not be saved: 'table' is of layout torch.sparse_coo",
)
zoo(
    "extra state",
    lambda: ExtraState(*mlp()),
    refused="ExtraState could not be saved: '_extra_state' is a dict, not a tensor",
)
zoo(
    "lazy",
    lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(UNITS)),
    refused="Sequential is lazy: '0.weight' has no shape yet",
)
zoo("lazy, after a batch", initialised)
zoo(
    "made in inference mode",
    made_in_inference_mode,
    refused="'0.weight' was made inside torch.inference_mode()",
)
zoo("on the meta device", on_meta, refused="Sequential is on meta")
zoo(
    "partly on the meta device",
    lambda: nn.Sequential(nn.Linear(6, 16, device="meta"), nn.ReLU(), head()),
    refused="Sequential is on cpu and meta",
)
zoo(
    "nothing to train",
    lambda: mlp().requires_grad_(False),
    refused="Sequential has no parameter that requires a gradient",
)
