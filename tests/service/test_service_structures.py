"""A service whose samples are dictionaries: journal, kill, checkpoint and answers."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import ocar
from ocar.errors import InputError
from ocar.items import Item
from ocar.service import Refused, Service


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.words(ids) * mask.unsqueeze(-1)).mean(1))


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Words()


def new_learner() -> ocar.Learner:
    return ocar.ER(model(), lr=0.1, memory=20)


def open_service(folder: Path) -> Service:
    return Service(
        folder,
        new=new_learner,
        load=lambda path: ocar.load(path, model()),
        item={
            "ids": Item(torch.Size([4]), torch.int64),
            "mask": Item(torch.Size([4]), torch.bool),
        },
        every=3,
    )


def batch(name: int) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(name)
    ids = torch.randint(20, (5, 4), generator=generator)
    return {"mask": ids % 3 > 0, "ids": ids}, ids[:, 0] % 3


def test_a_killed_service_goes_on_to_the_bit(tmp_path: Path) -> None:
    service = open_service(tmp_path / "killed")
    for name in range(5):
        assert service.accept(*batch(name), key=str(name)).number == name + 1
    service.flush()
    # A kill: the folder as it is, without what close would save.
    for path in (tmp_path / "killed").iterdir():
        target = tmp_path / "again" / path.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    service.close()
    again = open_service(tmp_path / "again")
    x, y = batch(3)
    assert again.accept({"ids": x["ids"], "mask": x["mask"]}, y, key="3").repeated
    with pytest.raises(Refused, match="came with another batch"):
        again.accept(x | {"mask": ~x["mask"]}, y, key="3")
    oracle = new_learner()
    for name in range(5):
        oracle.learn(*batch(name))
    answer = again.predict(batch(9)[0])
    assert torch.equal(answer.logits, oracle.predict(batch(9)[0]))
    assert torch.equal(answer.probabilities, oracle.predict_proba(batch(9)[0]))
    again.close()


def test_another_structure_is_refused(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    x, y = batch(0)
    for wrong in (x["ids"], (x["ids"], x["mask"]), {"ids": x["ids"]}, x | {"mask": x["ids"]}):
        with pytest.raises(InputError, match=r"x.* must"):
            service.accept(wrong, y)
        with pytest.raises(InputError, match=r"x.* must"):
            service.predict(wrong)
    assert service.status()["accepted"] == 0
    service.close()


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_lack_of_memory_is_not_blamed_on_the_samples(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client must not drop them: the batch is accepted later."""
    service = open_service(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Words, "forward", Mock(side_effect=error))
        with pytest.raises(error):
            service.predict(batch(0)[0])
        with pytest.raises(error):
            service.accept(*batch(0), key="a")
    assert service.accept(*batch(0), key="a") == (1, False)
    service.close()


def test_samples_that_the_model_cannot_take_are_refused(tmp_path: Path) -> None:
    """Of the right shape and type, but with an index that the embedding does not have."""
    service = open_service(tmp_path)
    x, y = batch(0)
    wrong = x | {"ids": x["ids"] + 20}
    for name in (0, 1):  # with a model that has learned nothing, and with one that has
        with pytest.raises(InputError, match=r"The model cannot take .* index out of range"):
            service.accept(wrong, y)
        with pytest.raises(InputError, match=r"The model cannot take .* index out of range"):
            service.predict(wrong)
        assert service.accept(*batch(name)).number == name + 1
        service.flush()
    assert service.status()["failure"] == ""
    service.close()
