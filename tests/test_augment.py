"""Strong augmentation against a loop over single images and pixels."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

import ocar
from ocar import augment
from ocar.augment import ColorJitter, Compose, Grey, HorizontalFlip, ResizedCrop
from ocar.config import from_plain, to_plain
from ocar.errors import ConfigError, InputError
from ocar.rng import make_generator

CLOSE = {"rtol": 0, "atol": 1e-9}


def pixels(n: int, channels: int = 3, height: int = 7, width: int = 6, *, seed: int = 0):
    return np.random.default_rng(seed).random((n, channels, height, width))


# --- windows -------------------------------------------------------------------------------------


def beyond(index: int, side: int, padding: str) -> int | None:
    """Which pixel stands for one that may lie beyond the image; None for black."""
    if 0 <= index < side:
        return index
    if padding == "zeros":
        return None
    if padding == "border":
        return min(max(index, 0), side - 1)
    period = 2 * side
    index %= period
    return index if index < side else period - 1 - index


def sample(channel: np.ndarray, y: float, x: float, padding: str) -> float:
    """The value between four pixels, one pixel after another."""
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            weight = (1 - abs(y - row)) * (1 - abs(x - column))
            r, c = beyond(row, channel.shape[0], padding), beyond(column, channel.shape[1], padding)
            total += weight * (0.0 if r is None or c is None else channel[r, c])
    return total


def loop_resized_crop(x, windows, *, align_corners: bool, padding: str) -> np.ndarray:
    _, channels, height, width = x.shape
    out = np.empty_like(x)
    for i, (left, top, wide, high) in enumerate(windows):
        for r in range(height):
            for c in range(width):
                if align_corners:
                    y = top + r * (high - 1) / (height - 1)
                    z = left + c * (wide - 1) / (width - 1)
                else:
                    y = top + (r + 0.5) * high / height - 0.5
                    z = left + (c + 0.5) * wide / width - 0.5
                for channel in range(channels):
                    out[i, channel, r, c] = sample(x[i, channel], y, z, padding)
    return out


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_windows_are_resized_as_by_a_loop(align_corners: bool, padding: str, data) -> None:
    height, width = data.draw(st.integers(3, 7)), data.draw(st.integers(3, 7))
    x = pixels(3, 2, height, width, seed=data.draw(st.integers(0, 99)))
    windows = []
    for _ in range(3):
        wide, high = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
        left = data.draw(st.integers(0, 2 * (width - wide))) / 2
        windows.append((left, data.draw(st.integers(0, height - high)), wide, high))
    got = augment.resized_crop(
        torch.from_numpy(x), torch.tensor(windows), align_corners=align_corners, padding=padding
    )
    want = loop_resized_crop(x, windows, align_corners=align_corners, padding=padding)
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-6)


def test_a_window_between_corners_is_a_resized_slice() -> None:
    """As the survey's library does it: cut out, then interpolate."""
    x = torch.from_numpy(pixels(1, 3, 8, 8))
    got = augment.resized_crop(x, torch.tensor([[2.0, 1.0, 4.0, 5.0]]), align_corners=True)
    want = torch.nn.functional.interpolate(
        x[:, :, 1:6, 2:6], size=(8, 8), mode="bilinear", align_corners=True
    )
    torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize("align_corners", [False, True])
def test_the_whole_image_stays_as_it_is(align_corners: bool) -> None:
    x = torch.from_numpy(pixels(2))
    windows = torch.tensor([[0.0, 0.0, 6.0, 7.0]] * 2)
    got = augment.resized_crop(x, windows, align_corners=align_corners)
    torch.testing.assert_close(got, x, **CLOSE)


@pytest.mark.parametrize(("whole", "half"), [(True, False), (False, False), (True, True)])
def test_windows_are_drawn_within_the_image_and_the_ranges(whole: bool, half: bool) -> None:
    crop = ResizedCrop(scale=(0.3, 1.0), whole_side=whole, half_pixels=half)
    windows = crop.draw(20_000, 32, 32, generator=make_generator(0, "crop"))
    left, top, wide, high = windows.unbind(1)
    assert left.min() >= 0
    assert (left + wide).max() <= 32
    assert top.min() >= 0
    assert (top + high).max() <= 32
    for side in (wide, high):
        assert torch.equal(side, side.round())
        assert side.max() == (32 if whole else 31)
    area, shape = wide * high / 32**2, wide / high
    assert 0.27 < area.min() < 0.33
    assert 0.70 < shape.min() < 0.77
    assert 1.30 < shape.max() < 1.43
    assert shape.log().mean().abs() < 0.01  # as often wide as high
    steps = 2 if half else 1
    assert torch.equal(left * steps, (left * steps).round())
    assert bool((left * 2 % 2 == 1).any()) == half
    # Uniform over the places: the mean is in the middle.
    room = (32 - wide) > 0
    assert abs((left[room] / (32 - wide)[room]).mean() - 0.5) < 0.02
    assert (left == 32 - wide).any()
    assert (left == 0).any()


def test_of_several_tries_the_first_that_fits_is_taken() -> None:
    crop = ResizedCrop(scale=(0.9, 1.0), ratio=(0.5, 2.0), tries=3, whole_side=False)
    windows = crop.draw(500, 20, 20, generator=make_generator(0, "crop"))
    generator = make_generator(0, "crop")
    uniform = torch.rand(2, 500, 3, generator=generator).double().numpy()
    missed = 0
    for i, window in enumerate(windows.tolist()):
        for k in range(3):
            area = (0.9 + 0.1 * uniform[0, i, k]) * 400
            ratio = math.exp(math.log(0.5) + (math.log(2) - math.log(0.5)) * uniform[1, i, k])
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if wide < 20 and high < 20:
                assert window[2:] == [wide, high]
                break
        else:
            missed += 1
            assert window == [0, 0, 20, 20]
    assert missed > 10


def test_where_no_window_fits_it_is_the_largest_in_the_middle() -> None:
    wide = ResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0)).draw(
        3, 8, 20, generator=make_generator(0, "crop")
    )
    assert wide.tolist() == [[6, 0, 8, 8]] * 3
    high = ResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0)).draw(
        3, 20, 8, generator=make_generator(0, "crop")
    )
    assert high.tolist() == [[0, 6, 8, 8]] * 3


# --- flip and grey -------------------------------------------------------------------------------


def test_flip_and_grey_change_the_chosen_images_only() -> None:
    x, chosen = pixels(5), [True, False, True, True, False]
    flipped = augment.horizontal_flip(torch.from_numpy(x), torch.tensor(chosen)).numpy()
    grey = augment.greyed(torch.from_numpy(x), torch.tensor(chosen)).numpy()
    for i, image in enumerate(x):
        np.testing.assert_array_equal(flipped[i], image[:, :, ::-1] if chosen[i] else image)
        value = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
        want = np.stack([value] * 3) if chosen[i] else image
        np.testing.assert_allclose(grey[i], want, rtol=0, atol=1e-12)


def test_flip_and_grey_agree_with_pillow() -> None:
    x = (pixels(2) * 255).round().astype(np.uint8)
    everything = make_generator(0, "all")
    flipped = HorizontalFlip(probability=1.0)(torch.from_numpy(x), everything).numpy()
    grey = Grey(probability=1.0)(torch.from_numpy(x), everything).numpy()
    for i, image in enumerate(x):
        picture = Image.fromarray(image.transpose(1, 2, 0))
        np.testing.assert_array_equal(flipped[i].transpose(1, 2, 0), ImageOps.mirror(picture))
        difference = grey[i, 0].astype(int) - np.asarray(picture.convert("L")).astype(int)
        assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("kind", [HorizontalFlip, Grey])
def test_probabilities(kind) -> None:
    for probability in (0.0, 0.25, 1.0):
        chosen = kind(probability=probability).draw(20_000, generator=make_generator(0, "p"))
        assert chosen.double().mean().item() == pytest.approx(probability, abs=0.015)


# --- colours -------------------------------------------------------------------------------------


def clip(values: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(values, 0.0), 1.0)


def one_jitter(image: np.ndarray, index: int, factor: float) -> np.ndarray:
    """One operation on one image ``(3, h, w)``."""
    grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    if index == 0:
        return clip(image * factor)
    if index == 1:
        return clip(factor * image + (1 - factor) * grey.mean())
    if index == 2:
        return clip(factor * image + (1 - factor) * grey)
    out = np.empty_like(image)
    for r in range(image.shape[1]):
        for c in range(image.shape[2]):
            h, s, v = colorsys.rgb_to_hsv(*image[:, r, c])
            out[:, r, c] = colorsys.hsv_to_rgb((h + factor) % 1.0, s, v)
    return out


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]])
def test_jitter_equals_the_loop_in_any_order(order: list[int]) -> None:
    x = pixels(4)
    x[0, :, 0] = 0.3  # a row without colour
    x[1, 0] = x[1, 1]  # two channels equal
    factors, _, _ = ColorJitter(hue=0.5).draw(4, generator=make_generator(1, "jitter"))
    factors, chosen = factors.double(), torch.tensor([True, True, False, True])
    got = augment.color_jitter(torch.from_numpy(x), factors, chosen, torch.tensor(order))
    for i, image in enumerate(x):
        for index in order if chosen[i] else ():
            image = one_jitter(image, index, factors[index, i].item())
        np.testing.assert_allclose(got[i].numpy(), image, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("row", "enhancer"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
def test_brightness_contrast_and_saturation_agree_with_pillow(row: int, enhancer) -> None:
    x = (pixels(1) * 255).round().astype(np.uint8)
    for factor in (0.6, 1.3):
        change = augment._CHANGES[row]
        unit = torch.from_numpy(x).double() / 255
        got = change(unit, torch.tensor(factor)).numpy()[0] * 255
        picture = enhancer(Image.fromarray(x[0].transpose(1, 2, 0))).enhance(factor)
        want = np.asarray(picture).transpose(2, 0, 1)
        assert np.abs(got - want).max() <= 1.5


def test_draws_of_the_jitter() -> None:
    jitter = ColorJitter(brightness=0.4, contrast=0.3, saturation=0.2, hue=0.1, probability=0.8)
    generator = make_generator(0, "jitter")
    factors, chosen, _ = jitter.draw(20_000, generator=generator)
    for row, (middle, size) in enumerate([(1, 0.4), (1, 0.3), (1, 0.2), (0, 0.1)]):
        assert factors[row].min().item() == pytest.approx(middle - size, abs=1e-3)
        assert factors[row].max().item() == pytest.approx(middle + size, abs=1e-3)
        assert factors[row].mean().item() == pytest.approx(middle, abs=0.01)
    assert chosen.double().mean().item() == pytest.approx(0.8, abs=0.015)
    orders = {tuple(jitter.draw(1, generator=generator)[2].tolist()) for _ in range(600)}
    assert len(orders) == 24
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)


def test_images_without_colour_keep_what_has_no_meaning_for_them() -> None:
    x = torch.from_numpy(pixels(3, channels=1))
    assert torch.equal(augment.greyed(x, torch.ones(3, dtype=torch.bool)), x)
    assert torch.equal(augment._saturate(x, torch.tensor(0.5)), x)
    assert torch.equal(augment._turn_hue(x, torch.tensor(0.2)), x)
    bright = augment._brighten(x, torch.tensor(0.5))
    torch.testing.assert_close(bright, x / 2)


# --- all of them ---------------------------------------------------------------------------------

ALL = (ResizedCrop(), HorizontalFlip(), ColorJitter(), Grey(), Compose((ResizedCrop(), Grey())))


@pytest.mark.parametrize("part", ALL, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_shape_type_generator_and_input(part, dtype: torch.dtype) -> None:
    x = torch.from_numpy((pixels(30) * 255).round()).to(dtype)
    x = x if dtype == torch.uint8 else x / 255
    before, copy = torch.get_rng_state(), x.clone()
    got = part(x, make_generator(0, "augment"))
    assert (got.shape, got.dtype) == (x.shape, x.dtype)
    assert torch.equal(x, copy)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(got, part(x, make_generator(0, "augment")))
    assert not torch.equal(got, part(x, make_generator(3, "augment")))


def test_composition_rounds_to_bytes_once() -> None:
    x = torch.from_numpy((pixels(6) * 255).round().astype(np.uint8))
    chain = Compose((ResizedCrop(), HorizontalFlip(), ColorJitter(), Grey()))
    generator, y = make_generator(0, "augment"), x.float() / 255
    for part in chain.parts:
        y = part(y, generator)
    assert torch.equal(chain(x, make_generator(0, "augment")), (y * 255).round().to(torch.uint8))


def test_plain_form_and_back() -> None:
    chain = Compose((ResizedCrop(scale=(0.3, 1.0)), ColorJitter(hue=0.2)))
    assert from_plain(Compose, to_plain(chain), kinds=augment.AUGMENTATIONS) == chain


def test_a_learner_is_restored_with_its_augmentation(tmp_path) -> None:
    def model():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 42, 2))

    chain = Compose((ResizedCrop(), ColorJitter()))
    learner = ocar.ER(model(), lr=0.1, augment=chain)
    learner.learn(torch.from_numpy(pixels(4)).float(), torch.tensor([0, 1, 0, 1]))
    learner.save(tmp_path / "ckpt")
    assert ocar.load(tmp_path / "ckpt", model()).settings.augment == chain


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResizedCrop(scale=(0.0, 1.0)), r"Invalid scale=\(0.0, 1.0\). Must be increasing"),
        (lambda: ResizedCrop(ratio=(2.0, 1.0)), r"Invalid ratio=\(2.0, 1.0\). Must be increasing"),
        (lambda: ResizedCrop(tries=0), r"Invalid tries=0. Must be at least 1"),
        (lambda: ResizedCrop(padding="wrap"), r"Invalid padding='wrap'. Must be one of"),
        (lambda: HorizontalFlip(probability=2.0), r"Invalid probability=2.0. Must be in \[0, 1\]"),
        (lambda: Grey(probability=-1.0), r"Invalid probability=-1.0. Must be in \[0, 1\]"),
        (lambda: ColorJitter(hue=0.6), r"Invalid hue=0.6. Must be in \[0, 0.5\]"),
        (lambda: ColorJitter(contrast=1.5), r"Invalid contrast=1.5. Must be in \[0, 1\]"),
    ],
)
def test_wrong_settings_are_refused(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(InputError, match=r"Cannot augment images of shape \(3, 4\)"):
        Grey()(torch.zeros(3, 4), make_generator(0, "augment"))
