"""G of many layers by kernels of our own, against one product for each in float64.

On a GPU, or in Triton's interpreter, see ``interpreter.py``.
"""

from __future__ import annotations

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON, device_of_kernels
from ocar.curvature.many_gradients import ManyGradients, find_matrices
from torch import Tensor

from ocar.curvature import factors, many_squares

pytestmark = NEEDS_TRITON
CLOSE = 1e-6 if INTERPRETED else 2e-3
"""Of the norm: a GPU rounds what it multiplies to eleven bits."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_of_kernels(monkeypatch, many_squares)


def numbers(*shape: int, by_pixel: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    t = torch.randn(shape, generator=generator, dtype=torch.float32)
    return t.movedim(2, -1).contiguous().movedim(-1, 2) if by_pixel else t


def in_layout(g: Tensor) -> Tensor:
    """As ``(columns, n, 1, outputs, places)``."""
    if g.dim() == 5:
        return g.flatten(3).unsqueeze(2)
    return factors.linear_gradients(g)


def check(numbers: dict[str, Tensor], device: torch.device) -> None:
    gradients = {name: (g.to(device), g.dim() == 5) for name, g in numbers.items()}
    matrices = find_matrices(gradients)
    assert [matrix.name for matrix in matrices] == list(gradients)
    starts, end = {}, 3
    for matrix in matrices:
        starts[matrix.name] = end
        end += matrix.size**2 + 1
    out = torch.full((end,), 7.0, dtype=torch.float32, device=device)
    many = ManyGradients()
    assert many.estimate(gradients, out)[0] == set()  # nothing is ready yet
    many.see(gradients)
    many.prepare(starts, out)
    done, estimate = many.estimate(gradients, out)
    assert done == gradients.keys()
    estimate()
    untouched = torch.ones(end, dtype=torch.bool)
    for matrix in matrices:
        place = slice(starts[matrix.name], starts[matrix.name] + matrix.size**2)
        found = out[place].view(matrix.size, matrix.size)
        g = in_layout(gradients[matrix.name][0]).double()
        (wanted,) = factors.gradient_factor(g, sharing="expand")
        assert (found - wanted).norm() <= CLOSE * wanted.norm()
        assert torch.equal(found, found.T)
        untouched[place] = False
    assert (out[untouched.to(device)] == 7).all()
    many.forget()
    assert many.estimate(gradients, out)[0] == set()


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
    def is_found(g: Tensor, *, of_images: bool) -> bool:
        return bool(find_matrices({"a": (g, of_images)}))

    g = numbers(2, 3, 8, 4, 8).to(device)
    assert is_found(g, of_images=True)
    assert not is_found(g.double(), of_images=True)
    assert not is_found(g[..., :7], of_images=True)
    assert not is_found(numbers(2, 3, 8, 5, 5).to(device), of_images=True)
    assert not is_found(numbers(2, 8, 3).to(device).mT, of_images=False)
    assert not is_found(numbers(97).to(device)[1:].view(2, 3, 16), of_images=False)


def test_what_cannot_be_compiled_is_left_to_the_library(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a tuple is no argument")

    monkeypatch.setattr(many_squares.ManySquares, "compile", fail)
    gradients = {"a": (numbers(2, 3, 8).to(device), False)}
    out = torch.zeros(64, dtype=torch.float32, device=device)
    many = ManyGradients()
    many.see(gradients)
    with pytest.warns(UserWarning, match="^Factors .* a tuple is no argument$"):
        many.prepare({"a": 0}, out)
    many.prepare({"a": 0}, out)  # it is not tried again
    assert many.estimate(gradients, out)[0] == set()
