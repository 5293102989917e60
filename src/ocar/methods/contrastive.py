"""Losses that compare samples with each other, as pure functions, and the projections they compare.

Rows are samples or views of samples. With n samples in two views, rows i and i + n are views of the
same sample. A similarity s is ``(rows, columns)``; ``same`` marks the pairs with the same label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.methods.context import Context
from ocar.methods.objective import ClassObjective, S
from ocar.rng import make_generator
from ocar.state import check_names, with_prefix, without_prefix

EPSILON = 1e-8
"""Keeps logarithms and quotients finite in :func:`pair_losses` and :func:`unit_rows`."""


class Projecting(ClassObjective[S]):
    """A loss of projections: a small network makes them of the features, and learns with the model.

    ``name`` is the name of the generator of the views.
    """

    joint = False

    projection: nn.Module
    """Maps features to projections; a subclass makes it."""

    def __init__(self, settings: S, context: Context, *, name: str) -> None:
        super().__init__(settings, context)
        self.generator = make_generator(context.seed, name, context.device)

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generator of the views."""
        return (self.generator,)

    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters of the projection."""
        return tuple(self.projection.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """The projection and the generator."""
        projection = with_prefix("projection", self.projection.state_dict())
        return {**projection, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        load_module("projection", self.projection, state)
        self.generator.set_state(state["generator"])


def load_module(name: str, module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore a module from the tensors of a state that have its name as prefix."""
    given = without_prefix(name, state)
    check_names(name, given, module.state_dict())
    module.load_state_dict(given)


def make_linear(
    inputs: int, outputs: int, *, generator: torch.Generator, like: Tensor
) -> nn.Linear:
    """A linear layer with weights like a tensor's, drawn as ``nn.Linear`` does by a generator."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, device=like.device, dtype=like.dtype)
    assert isinstance(layer, nn.Linear)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            drawn = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            parameter.copy_(drawn)
    return layer


def unit_rows(x: Tensor) -> Tensor:
    """Rows of length 1, ``(n, d)`` to ``(n, d)``; a row of zeros stays."""
    return x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + EPSILON)


def supervised_contrastive(z: Tensor, y: Tensor, *, temperature: float) -> Tensor:
    """The loss of Khosla et al. (NeurIPS 2020), with the mean over positives outside the logarithm.

        1/n Σ_i −1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p/T) / Σ_{a ≠ i} exp(z_i·z_a/T) ),

    where P(i) are the other rows with the label of row i, for projections z, ``(n, d)``, and labels
    y, ``(n,)``, each at least twice.
    """
    similarity = z @ z.T / temperature
    itself = torch.eye(z.shape[0], dtype=torch.bool, device=z.device)
    positive = (y[:, None] == y).masked_fill(itself, False).to(z.dtype)
    total = similarity.masked_fill(itself, float("-inf")).logsumexp(dim=1)
    return (total - (positive * similarity).sum(1) / positive.sum(1)).mean()


def pair_losses(similarity: Tensor, *, temperature: float, itself: bool) -> Tensor:
    """−log(E_ij / (Σ_k E_ik + ε) + ε) with E_ij = exp((s_ij − max_k s_ik) / T).

    s and the losses are ``(rows, columns)``. Unless a row is compared with ``itself``, E_ii is 0.
    """
    largest = similarity.detach().amax(dim=1, keepdim=True)
    powers = ((similarity - largest) / temperature).exp()
    if not itself:
        diagonal = torch.eye(powers.shape[0], dtype=torch.bool, device=powers.device)
        powers = powers.masked_fill(diagonal, 0.0)
    return -(powers / (powers.sum(1, keepdim=True) + EPSILON) + EPSILON).log()


def mean_over_same(losses: Tensor, same: Tensor) -> Tensor:
    """The mean over rows of the mean over columns with the same label, a row itself included."""
    weights = same.to(losses.dtype)
    weights = weights / (weights.sum(1, keepdim=True) + EPSILON)
    return (weights * losses).sum() / losses.shape[0]


def mean_over_views(losses: Tensor) -> Tensor:
    """The mean over rows of the loss for the other view of the same sample; ``(2n, 2n)``."""
    n = losses.shape[0] // 2
    return (losses.diagonal(n).sum() + losses.diagonal(-n).sum()) / losses.shape[0]


def prototype_loss(
    first: Tensor, second: Tensor, y: Tensor, *, classes: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """Contrast of class means: each with the same class in the other view, against all others.

    With p and q the class means in the two views, of unit length, z = [p; q] and t the temperature:

        mean_i −log( exp(z_i·z_i'/t) / Σ_{j ≠ i} exp(z_i·z_j/t) ),

    where i' is the same class in the other view. Classes that do not occur are left out. The
    projections of a view are ``(n, d)``, the units y ``(n,)``; ``classes`` counts the units.

    Returns:
        The loss, a scalar, and the mean of the two class means before normalisation,
        ``(classes, d)``, zero for a class that does not occur.
    """
    members = functional.one_hot(y, classes).to(first.dtype)  # (n, classes)
    counts = members.sum(0)
    shares = members.T / counts.clamp_min(1)[:, None]
    means = torch.stack([shares @ first, shares @ second])
    z = functional.normalize(means, dim=2).flatten(0, 1)
    similarity = z @ z.T / temperature
    there = (counts > 0).repeat(2)
    itself = torch.eye(2 * classes, dtype=torch.bool, device=z.device)
    total = similarity.masked_fill(itself | ~there, float("-inf")).logsumexp(dim=1)
    positive = torch.cat([similarity.diagonal(classes), similarity.diagonal(-classes)])
    loss = torch.where(there, total - positive, 0.0).sum() / there.sum()
    return loss, means.mean(0)


def rotations(x: Tensor) -> Tensor:
    """Images rotated in sixteen ways; the first way leaves them unchanged.

    Neither half, the left half, the right half or both halves are rotated by 180° in place. Then
    the whole image is rotated by 0, 1, 2 or 3 quarters. Images that are not square are rotated by 0
    and 2 quarters only. Samples that are not images are returned unchanged. From ``(n, ...)`` to
    ``(ways · n, ...)``, all samples in the first way, then all in the second, and so on.
    """
    if x.dim() != 4:
        return x
    height, width = x.shape[2:]
    left, right = x[..., : width // 2], x[..., width // 2 :]
    left_down, right_down = left.flip(2, 3), right.flip(2, 3)
    inner = torch.cat(
        [
            x,
            torch.cat([left, right_down], dim=3),
            torch.cat([left_down, right_down], dim=3),
            torch.cat([left_down, right], dim=3),
        ]
    )
    quarters = (0, 1, 2, 3) if height == width else (0, 2)
    return torch.cat([inner.rot90(k, (2, 3)) for k in quarters])
