"""Blocks that are not Kronecker-factored: normalisation layers and embeddings."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import average
from nets import observe, set_gradients
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC

ROOT_OF = {"coupled": "exact", "independent": "exact(independent)"}


def norm_net(norm: nn.Module, *, flat: bool) -> nn.Sequential:
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    if flat:
        return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 3))
    conv = nn.Conv2d(2, 4, 2)
    return nn.Sequential(conv, norm, nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))


NORMS = {
    "batch1d": lambda: (norm_net(nn.BatchNorm1d(4), flat=True), torch.randn(5, 3)),
    "batch2d": lambda: (norm_net(nn.BatchNorm2d(4), flat=False), torch.randn(4, 2, 3, 3)),
    "layer": lambda: (norm_net(nn.LayerNorm(4), flat=True), torch.randn(5, 3)),
    "group": lambda: (norm_net(nn.GroupNorm(2, 4), flat=False), torch.randn(4, 2, 3, 3)),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("target", ["coupled", "independent"])
def test_norm_layers_get_a_block_for_each_unit(norm, training, target):
    model, x = NORMS[norm]()
    model.train(training)
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher=ROOT_OF[target], norm_layers=True)
    observe(kfac, x)
    expected = reference.norm_layer_fisher(model, x, "1", target=target)
    assert_close(average(kfac, "1", "F"), expected, **EXACT)
    plain = set_gradients(model)
    kfac.precondition_()
    for u in range(4):
        grad = torch.stack([plain["1.weight"][u], plain["1.bias"][u]])
        new = torch.linalg.solve(expected[u] + 0.1 * torch.eye(2), grad)
        assert_close(torch.stack([model[1].weight.grad[u], model[1].bias.grad[u]]), new, **EXACT)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_blocks_are_blocks_of_the_full_fisher_where_samples_do_not_interact(norm):
    model, x = NORMS[norm]()
    model.eval()
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact", norm_layers=True)
    observe(kfac, x)
    fisher = reference.full_fisher(model, x, parameters=[model[1].weight, model[1].bias])
    for u in range(4):
        own = torch.tensor([u, 4 + u])
        assert_close(average(kfac, "1", "F")[u], fisher[own][:, own], **EXACT)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_half_frozen_norm_layers(frozen):
    model, x = NORMS["layer"]()
    getattr(model[1], frozen).requires_grad_(False)
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact", norm_layers=True)
    if frozen == "weight":
        assert "1" not in kfac.layers  # a lone shift keeps its gradient
        return
    observe(kfac, x)
    fisher = reference.full_fisher(model, x, parameters=[model[1].weight])
    assert_close(average(kfac, "1", "F").flatten(), fisher.diagonal(), **EXACT)


class Bag(nn.Module):
    """Tokens embedded, their mean through Tanh and a linear layer."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 3, **options)
        self.head = nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens).flatten(1, -2).sum(1)))


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 2, 3)])
def test_embeddings_get_the_diagonal_of_the_full_fisher(shape):
    model, tokens = Bag(), torch.randint(5, shape)  # row 5 is never used
    if len(shape) > 1:
        tokens[0] = 2  # one token repeated
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact")
    observe(kfac, tokens.view(4, -1))
    fisher = reference.full_fisher(model, tokens.view(4, -1), parameters=[model.embed.weight])
    diagonal = fisher.diagonal().view(6, 3)
    assert_close(average(kfac, "embed", "F"), diagonal, **EXACT)
    plain = set_gradients(model)
    kfac.precondition_()
    assert_close(model.embed.weight.grad, plain["embed.weight"] / (diagonal + 0.1), **EXACT)
