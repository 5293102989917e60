"""The container of a data set, the digits, and where data is looked for."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ocar import datasets
from ocar.datasets import Arrays, load_digits
from ocar.errors import DataError, MissingPackageError
from ocar.install import install_line


def make(**changed: object) -> Arrays:
    x, y = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    given = {"name": "tiny", "x_train": x, "y_train": y, "x_test": x, "y_test": y}
    return Arrays(**{**given, **changed})  # type: ignore[arg-type]


X, Y = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": X.float()}, r"tiny: x_train is torch.float32"),
        ({"y_test": Y[:2]}, r"tiny: y_test .* Must be int64 \(3,\)"),
        ({"y_train": Y.int()}, r"tiny: y_train is torch.int32"),
        ({"x_train": X[:0], "y_train": Y[:0]}, r"n > 0"),
        ({"x_test": X[..., :1]}, r"samples of \(1, 2, 2\), .* and of \(1, 2, 1\)"),
        ({"x_validation": X}, "x_validation and y_validation must both be given"),
        ({"x_validation": X, "y_validation": Y[:1]}, r"y_validation .* Must be int64 \(3,\)"),
        ({"x_unknown": X.flatten(1).long()}, r"in x_unknown. Must be the same"),
        ({"x_unknown": X[0]}, r"x_unknown is torch.uint8 of shape \(1, 2, 2\)"),
        ({"domain_train": Y}, "0 domains are named and domain_train is given"),
        ({"domains": ("a",)}, "1 domains are named and domain_train is not given"),
        ({"domains": ("a",), "domain_train": Y}, "domain_test is not given"),
        (
            {"domains": ("a",), "domain_train": Y, "domain_test": Y + 1},
            r"domain_test must be in 0\.\.0",
        ),
        ({"domains": ("a",), "domain_train": Y - 1, "domain_test": Y}, "domain_train must be"),
        ({"domains": ("a",), "domain_train": Y[:1], "domain_test": Y}, "domain_train is torch"),
    ],
)
def test_arrays_are_checked(changed: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**changed)


def test_samples_move_and_labels_stay_on_the_host() -> None:
    good = make(domains=("a",), domain_train=Y, domain_test=Y, classes=("zero",))
    moved = good.to("meta")
    assert all(t.device.type == "meta" for t in (moved.x_train, moved.x_test))
    for name in ("y_train", "y_test", "domain_train", "domain_test"):
        assert getattr(moved, name) is getattr(good, name)
    assert (moved.name, moved.classes, moved.domains) == ("tiny", ("zero",), ("a",))
    assert good.to("cpu").x_train is good.x_train
    assert good.image_shape == (1, 2, 2)


@pytest.mark.parametrize("domain", [[0, 0, 1, 1, 2], [2, 0, 1, 0, 1]])
def test_domains_can_be_taken_apart(domain: list[int]) -> None:
    x = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1)
    place = torch.tensor(domain)
    arrays = Arrays(
        name="set",
        x_train=x,
        y_train=torch.arange(5),
        x_test=x,
        y_test=torch.arange(5),
        domain_train=place,
        domain_test=place,
        domains=("a", "b", "c"),
        classes=("k",),
    )
    parts = arrays.by_domain()
    assert [part.name for part in parts] == ["set/a", "set/b", "set/c"]
    for index, part in enumerate(parts):
        expected = [i for i in range(5) if domain[i] == index]
        assert part.y_train.tolist() == part.y_test.tolist() == expected
        assert part.x_train.flatten().tolist() == part.x_test.flatten().tolist() == expected
        assert part.domains == ()
        assert part.classes == ("k",)
        is_view = part.x_train.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert is_view == (expected == list(range(expected[0], expected[-1] + 1)))
    with pytest.raises(DataError, match="tiny has no domains"):
        make().by_domain()


def test_digits_are_the_bundled_ones_split_by_class() -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_digits()
    arrays = load_digits()
    assert arrays.image_shape == (1, 8, 8)
    assert len(arrays.x_train) + len(arrays.x_test) == 1797
    for label in range(10):
        test, train = (int((y == label).sum()) for y in (arrays.y_test, arrays.y_train))
        assert test == round((test + train) / 5)
    scaled = {
        (bytes(np.rint(image * 255 / 16).astype(np.uint8)), int(y))
        for image, y in zip(bunch.images, bunch.target, strict=True)
    }
    x = torch.cat([arrays.x_train, arrays.x_test])
    y = torch.cat([arrays.y_train, arrays.y_test])
    assert {(bytes(i.numpy()), int(j)) for i, j in zip(x, y, strict=True)} == scaled
    assert x.max() == 255
    again = load_digits()
    assert torch.equal(arrays.x_test, again.x_test)


def test_digits_without_scikit_learn_give_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("ocar.datasets.digits.importlib.import_module", refuse)
    with pytest.raises(MissingPackageError, match=re.escape(install_line("demo"))):
        load_digits()


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCAR_DATA", str(tmp_path))
    assert datasets.data_root() == tmp_path
    monkeypatch.setenv("OCAR_DATA", "")
    monkeypatch.setattr("ocar.datasets.base.sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert datasets.data_root() == tmp_path / "share" / "ocar"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert datasets.data_root() == Path.home() / ".local" / "share" / "ocar"
