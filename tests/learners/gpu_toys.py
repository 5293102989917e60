"""A network on a GPU and a stream for it, for the tests of recorded steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ocar.models.resnet import SlimResNet18


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SlimResNet18(width=4, classes=4).to("cuda", dtype)


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
