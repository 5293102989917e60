"""G of many layers by kernels of our own, against one product for each in float64.

On a GPU, or on a CPU with Triton and TRITON_INTERPRET=1 in the environment.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from torch import Tensor

from ocar.curvature import factors, many_squares
from ocar.curvature.many_squares import Matrix, find_gradients, make_squares

interpreted = os.environ.get("TRITON_INTERPRET") == "1" and bool(importlib.util.find_spec("triton"))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or interpreted), reason="needs CUDA, or Triton's interpreter"
    ),
]
CLOSE = 1e-6 if interpreted else 2e-3
"""Of the norm: a GPU rounds what it multiplies to eleven bits."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if not interpreted:
        return torch.device("cuda")
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(many_squares, "kernels", importlib.import_module)
    return torch.device("cpu")


def numbers(*shape: int, by_pixel: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    t = torch.randn(shape, generator=generator, dtype=torch.float32)
    return t.movedim(2, -1).contiguous().movedim(-1, 2) if by_pixel else t


def in_layout(g: Tensor) -> Tensor:
    """As ``(columns, n, 1, outputs, places)``."""
    if g.dim() == 5:
        return g.flatten(3).unsqueeze(2)
    return factors.linear_gradients(g)


def check(gradients: dict[str, Tensor], device: torch.device) -> None:
    gradients = {name: g.to(device) for name, g in gradients.items()}
    matrices: list[Matrix] = []
    starts, end = {}, 3
    for name, g in gradients.items():
        matrix = find_gradients(name, g, of_images=g.dim() == 5)
        assert matrix is not None
        matrices.append(matrix)
        starts[name] = end
        end += matrix.size**2 + 1
    out = torch.full((end,), 7.0, dtype=torch.float32, device=device)
    squares = make_squares(matrices, starts, out)
    assert squares is not None
    squares.square(gradients, out)
    untouched = torch.ones(end, dtype=torch.bool)
    for matrix in matrices:
        place = slice(starts[matrix.name], starts[matrix.name] + matrix.size**2)
        found = out[place].view(matrix.size, matrix.size)
        g = in_layout(gradients[matrix.name]).double()
        (wanted,) = factors.gradient_factor(g, sharing="expand")
        assert (found - wanted).norm() <= CLOSE * wanted.norm()
        assert torch.equal(found, found.T)
        untouched[place] = False
    assert (out[untouched.to(device)] == 7).all()


@pytest.mark.parametrize("columns", [1, 4])
def test_layers_of_all_kinds(columns: int, device: torch.device) -> None:
    check(
        {
            "stem": numbers(columns, 3, 20, 16, 16),
            "apart": numbers(columns, 3, 40, 4, 8),
            "together": numbers(columns, 3, 80, 3, 3, by_pixel=True),
            "one pixel": numbers(columns, 3, 36, 1, 1),
            "head": numbers(columns, 3, 128),
            "tokens": numbers(columns, 3, 5, 12),
            "grid of tokens": numbers(columns, 3, 5, 2, 8).flatten(2, 3),
        },
        device,
    )


def test_only_apart(device: torch.device) -> None:
    check({"a": numbers(2, 20, 20, 32, 32), "b": numbers(2, 20, 33, 2, 16)}, device)


def test_only_together_and_not_aligned(device: torch.device) -> None:
    check({"a": numbers(2, 4, 7, 5, 5, by_pixel=True), "b": numbers(2, 4, 10)}, device)


def test_what_is_left_to_the_library(device: torch.device) -> None:
    g = numbers(2, 3, 8, 4, 8).to(device)
    assert find_gradients("a", g, of_images=True) is not None
    assert find_gradients("a", g.double(), of_images=True) is None
    assert find_gradients("a", g[..., :7], of_images=True) is None
    assert find_gradients("a", numbers(2, 3, 8, 5, 5).to(device), of_images=True) is None
    assert find_gradients("a", numbers(2, 8, 3).to(device).mT, of_images=False) is None
    assert find_gradients("a", numbers(97).to(device)[1:].view(2, 3, 16), of_images=False) is None
