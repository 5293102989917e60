"""Views of a data set: against exact turns, another library, and the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from ocar.datasets import Arrays
from ocar.errors import ConfigError
from ocar.streams.views import Permute, Rotate, in_views


def images(n: int = 5, *, h: int = 8, w: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, 2, h, w), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [7, 8])
def test_quarter_turns_are_exact(turns: int, size: int) -> None:
    x = images(h=size, w=size)
    assert torch.equal(Rotate(90.0 * turns)(x), x.rot90(turns, (2, 3)))


def test_half_turn_of_an_oblong_image() -> None:
    x = images(h=6, w=9)
    assert torch.equal(Rotate(180.0)(x), x.rot90(2, (2, 3)))


@pytest.mark.parametrize("degrees", [9.0, 30.0, 77.0, 135.0])
@pytest.mark.parametrize("shape", [(41, 41), (41, 61)])
def test_other_angles_are_those_of_pillow(degrees: float, shape: tuple[int, int]) -> None:
    # A smooth image: the two treat the outermost half pixel differently, so the rim is left out.
    down, across = (torch.arange(size) - (size - 1) / 2 for size in shape)
    down, across = down[:, None] / 20, across[None, :] / 20
    smooth = 200 * torch.exp(-3 * ((down - 0.3) ** 2 + (across + 0.2) ** 2))
    x = smooth.round().to(torch.uint8)[None, None]
    want = Image.fromarray(x[0, 0].numpy()).rotate(degrees, Image.Resampling.BILINEAR)
    inside = (down**2 + across**2 < 0.8).numpy()
    turned, still = (image[0, 0].numpy().astype(int) for image in (Rotate(degrees)(x), x))
    assert np.abs(turned - np.asarray(want))[inside].max() <= 1
    assert np.abs(still - np.asarray(want))[inside].max() > 10  # a wrong angle would be seen


def test_a_view_of_a_sample_does_not_depend_on_the_batch() -> None:
    x = images()
    for view in (Rotate(33.0), Permute(0)):
        whole = view(x)
        assert (whole.shape, whole.dtype) == (x.shape, x.dtype)
        assert all(torch.equal(view(x[i : i + 1])[0], whole[i]) for i in range(len(x)))


def test_float_images_are_turned_too() -> None:
    x = images().double() / 255
    turned = Rotate(90.0)(x)
    torch.testing.assert_close(turned, x.rot90(1, (2, 3)))


def test_permutations_move_pixels_alike_in_every_image_and_channel() -> None:
    places = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(3, 2, 8, 8)
    moved = Permute(0)(places)
    assert sorted(moved[0, 0].flatten().tolist()) == list(range(64))
    assert torch.equal(moved, moved[:1, :1].expand_as(moved))
    others = [Permute(0, "b")(places), Permute(1)(places)]
    assert not any(torch.equal(moved, other) for other in others)


def make_arrays(n: int) -> Arrays:
    x = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, 2, 2)
    return Arrays(
        name="numbered", x_train=x, y_train=torch.arange(n), x_test=x[:3], y_test=torch.arange(3)
    )


def test_tasks_share_out_the_training_data() -> None:
    def brighter(x: torch.Tensor) -> torch.Tensor:
        return x + 100

    tasks = in_views(make_arrays(20), [brighter, brighter, brighter], samples=6, seed=3)
    given = [sample for task in tasks for sample in task.y_train.tolist()]
    assert len(set(given)) == len(given) == 18
    assert given != sorted(given)
    for task in tasks:
        assert torch.equal(task.x_train[:, 0, 0, 0].long(), task.y_train)
        assert task.view is brighter
        assert task.y_test.tolist() == [0, 1, 2]
    assert [len(task.y_train) for task in in_views(make_arrays(20), [brighter] * 3)] == [6, 6, 6]
    with pytest.raises(ConfigError, match=r"Invalid samples=7. Must be in 1\.\.6 for 3 tasks"):
        in_views(make_arrays(20), [brighter] * 3, samples=7)
