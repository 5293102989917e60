"""Small networks and images for OCM and OnPro, and the contrasts of both, written plainly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ocar.methods.contrastive import rotations

EPS = 1e-8


def small_net() -> nn.Module:
    """Without BatchNorm, so that forward passes can be taken one by one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(16, 9), nn.Tanh(), nn.Linear(9, 4)
        return nn.Sequential(*layers).double()


def tiny_images(n: int, labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, 4, 4, dtype=torch.float64, generator=generator)
    return x, torch.tensor(labels)[torch.randint(len(labels), (n,), generator=generator)]


def tilt(x: Tensor) -> Tensor:
    """Stands for the augmentation, which is random."""
    return 0.8 * x + 0.1 * x.flip(-1) + 0.05


def fix_views(objective) -> None:
    """Replace what is random in the views and their similarity."""
    objective.augmented = tilt
    objective.similarity = lambda u, f: u @ (u + f[:, 2 : 2 + u.shape[1]]).T


def features(model: nn.Module, x: Tensor) -> Tensor:
    return model[:-1](x)


def rows(x: Tensor) -> Tensor:
    return x / (x.norm(dim=1, keepdim=True) + EPS)


def losses_of(s: Tensor, *, itself: bool) -> Tensor:
    powers = ((s - s.detach().max(1, keepdim=True).values) / 0.3).exp()
    if not itself:
        powers = powers * (1 - torch.eye(len(s), dtype=s.dtype))
    return -(powers / (powers.sum(1, keepdim=True) + EPS) + EPS).log()


def by_class(losses: Tensor, labels: Tensor, *, views: int) -> Tensor:
    """The mean over pairs of one class and one way to turn."""
    names = [(float(label), way) for _ in range(views) for way in range(16) for label in labels]
    total = losses.new_zeros(())
    for i in range(len(losses)):
        same = [j for j in range(len(losses)) if names[j] == names[i]]
        total = total + losses[i, same].sum() / (len(same) + EPS)
    return total / len(losses)


def contrast(model, projection, x: Tensor, labels: Tensor, *, new: bool) -> Tensor:
    """The contrast of new or of replayed samples, at a temperature of 0.3."""
    turned = rotations(x)
    f = features(model, torch.cat([turned, tilt(turned)]))
    u, f = rows(projection(f)), rows(f)
    losses = losses_of(u @ (u + f[:, 2:6]).T, itself=not new)
    over_classes = by_class(losses, labels, views=2)
    if not new:
        return over_classes
    half = len(turned)
    pairs = sum(losses[i, i + half] + losses[i + half, i] for i in range(half)) / (2 * half)
    return pairs + 2 * over_classes
