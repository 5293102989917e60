"""Batched image operations against a loop over single images."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ocar.augment import CropFlip, Normalize, crop_flip
from ocar.errors import ConfigError, InputError
from ocar.rng import make_generator


def images(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def loop_crop_flip(
    x: np.ndarray, rows: list[int], columns: list[int], mirrored: list[bool], padding: int
) -> np.ndarray:
    """One image after another, with numpy's slices."""
    _, _, height, width = x.shape
    out = np.empty_like(x)
    for i, (image, row, column) in enumerate(zip(x, rows, columns, strict=True)):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        window = padded[:, row : row + height, column : column + width]
        out[i] = window[:, :, ::-1] if mirrored[i] else window
    return out


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_crop_flip_equals_the_loop(data: st.DataObject) -> None:
    n, channels, height, width = (data.draw(st.integers(1, 6)) for _ in range(4))
    padding = data.draw(st.integers(0, 5))
    offsets = st.lists(st.integers(0, 2 * padding), min_size=n, max_size=n)
    rows, columns = data.draw(offsets), data.draw(offsets)
    mirrored = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    x = images(data.draw(st.integers(0, 99)), n, channels, height, width)
    for batch in (x, x.double() / 255):
        got = crop_flip(
            batch,
            torch.tensor(rows),
            torch.tensor(columns),
            torch.tensor(mirrored),
            padding=padding,
        )
        assert got.dtype == batch.dtype
        assert got.is_contiguous()
        np.testing.assert_array_equal(
            got.numpy(), loop_crop_flip(batch.numpy(), rows, columns, mirrored, padding)
        )


@pytest.mark.parametrize("flip", [True, False])
def test_call_uses_its_generator_only(flip: bool) -> None:
    augment = CropFlip(padding=2, flip=flip)
    x = images(0, 8, 3, 6, 7)
    before = torch.get_rng_state()
    got = augment(x, make_generator(0, "augment"))
    assert torch.equal(before, torch.get_rng_state())
    rows, columns, mirrored = augment.draw(
        8, device=torch.device("cpu"), generator=make_generator(0, "augment")
    )
    want = loop_crop_flip(x.numpy(), rows.tolist(), columns.tolist(), mirrored.tolist(), 2)
    np.testing.assert_array_equal(got.numpy(), want)
    assert not torch.equal(got, augment(x, make_generator(1, "augment")))


def test_draws_are_uniform_and_independent() -> None:
    n, augment = 40_000, CropFlip(padding=1)
    rows, columns, mirrored = augment.draw(
        n, device=torch.device("cpu"), generator=make_generator(0, "augment")
    )
    cells = torch.bincount(rows * 6 + columns * 2 + mirrored.long(), minlength=18)
    assert cells.sum() == n
    expected = n / 18
    chi_squared = ((cells - expected) ** 2 / expected).sum().item()
    assert chi_squared < 40.8  # 99.9 % point with 17 degrees of freedom


def test_without_padding_and_flip_nothing_changes() -> None:
    x = images(0, 5, 3, 4, 4)
    assert torch.equal(CropFlip(padding=0, flip=False)(x, make_generator(0, "augment")), x)


def test_padding_is_black_in_raw_pixels() -> None:
    white = torch.full((64, 1, 4, 4), 255, dtype=torch.uint8)
    got = CropFlip(padding=2)(white, make_generator(0, "augment"))
    assert set(got.unique().tolist()) == {0, 255}


def test_normalize_equals_numpy() -> None:
    normalize = Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
    x = images(0, 4, 3, 5, 5)
    want = (x.numpy().astype(np.float64) / 255).transpose(0, 2, 3, 1)
    want = ((want - normalize.mean) / normalize.std).transpose(0, 3, 1, 2)
    got = normalize(x)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    exact = normalize(x.double() / 255)
    assert exact.dtype == torch.float64
    np.testing.assert_allclose(exact.numpy(), want, rtol=1e-12, atol=1e-12)


def test_default_normalize_is_zero_to_one_for_any_channels() -> None:
    x = images(0, 2, 3, 4, 4)
    torch.testing.assert_close(Normalize()(x), x.float() / 255)


def test_first_use_in_inference_mode_does_not_spoil_training() -> None:
    normalize = Normalize(mean=(0.123,), std=(0.456,))
    with torch.inference_mode():
        normalize(torch.zeros(1, 1, 2, 2))
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    normalize(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 0.456))


def test_fields_make_the_same_object_again() -> None:
    normalize, augment = Normalize(mean=(0.5,), std=(0.25,)), CropFlip(padding=8, flip=False)
    assert Normalize(**asdict(normalize)) == normalize
    assert CropFlip(**asdict(augment)) == augment


def test_errors_name_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="one number a channel"):
        Normalize(mean=(0.5, 0.5), std=(1.0,))
    with pytest.raises(ConfigError, match="greater than 0"):
        Normalize(mean=(0.5,), std=(0.0,))
    with pytest.raises(ConfigError, match=r"Invalid padding=-1. Must be at least 0"):
        CropFlip(padding=-1)
    with pytest.raises(InputError, match=r"torch.int64. Must be uint8 or float"):
        Normalize()(torch.zeros(1, 1, 2, 2, dtype=torch.int64))
    with pytest.raises(InputError, match="with 2 means"):
        Normalize(mean=(0.5, 0.5), std=(1.0, 1.0))(torch.zeros(1, 3, 2, 2))
    with pytest.raises(InputError, match=r"shape \(3, 4, 4\)"):
        CropFlip()(torch.zeros(3, 4, 4), make_generator(0, "augment"))
