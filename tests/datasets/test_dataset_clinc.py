"""CLINC150 and the encoders of sentences."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from dataset_files import real_root

from ocar.datasets import load_clinc150, status
from ocar.datasets.clinc import read_clinc150
from ocar.datasets.texts import HashedWords, WordLlamaEmbedding, _wordllama
from ocar.errors import ConfigError, DataError, MissingPackageError
from ocar.streams import make_stream

DOMAINS = {"home": ["lights", "music"], "travel": ["visa"]}


def small() -> dict[str, Any]:
    rows = [["lights on", "lights"], ["Play it!", "music"], ["visa for peru", "visa"]]
    outside = [["how tall is it", "oos"]]
    return {
        "train": rows, "val": rows[::-1], "test": rows[:2],
        "oos_train": outside, "oos_val": outside, "oos_test": outside * 2,
    }  # fmt: skip


def write(root: Path, data: object, domains: object = DOMAINS) -> Path:
    (root / "CLINC150").mkdir(exist_ok=True)
    (root / "CLINC150/data_full.json").write_text(json.dumps(data))
    (root / "CLINC150/domains.json").write_text(json.dumps(domains))
    return root


def test_sentences_get_the_labels_of_their_intents(tmp_path: Path) -> None:
    arrays = load_clinc150(write(tmp_path, small()))
    assert arrays.classes == ("lights", "music", "visa")
    assert arrays.domains == ("home", "travel")
    assert arrays.y_train.tolist() == [0, 1, 2]
    assert arrays.y_validation is not None
    assert arrays.y_validation.tolist() == [2, 1, 0]
    assert arrays.y_test.tolist() == [0, 1]
    assert arrays.domain_train is not None
    assert arrays.domain_train.tolist() == [0, 0, 1]
    assert arrays.x_unknown is not None
    assert torch.equal(arrays.x_unknown, HashedWords()(["how tall is it"] * 2))
    assert arrays.image_shape == (1, 1, 24)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": [["lights on", "heating"]]}, "'train' holds .*heating"),
        ({"test": [["lights on"]]}, "'test' holds"),
        ({"val": [[1, "visa"]]}, "'val' holds"),
        ({"val": []}, "no sentences in 'val'"),
        ({"oos_test": [["hm", "visa"]]}, "'oos_test' holds"),
    ],
)
def test_damaged_data_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_clinc150(write(tmp_path, small() | change))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"No CLINC150 file .*domains.json. Put data/data_full.json"
    ):
        load_clinc150(tmp_path)
    for domains, message in (
        ({"home": "lights"}, "'home' is no list"),
        ({"home": ["a"], "work": ["a"]}, "each intent in one domain"),
        ([], "holds a list"),
    ):
        with pytest.raises(DataError, match=message):
            read_clinc150(write(tmp_path, small(), domains))
    (write(tmp_path, small()) / "CLINC150/data_full.json").write_text("{")
    with pytest.raises(DataError, match="Cannot read"):
        read_clinc150(tmp_path)


def test_the_status_counts_and_compares(tmp_path: Path) -> None:
    (found,) = status(write(tmp_path, small()), names=("clinc150",))
    assert (found.present, found.whole, found.genuine) == (True, False, False)
    (tmp_path / "CLINC150/domains.json").unlink()
    (found,) = status(tmp_path, names=("clinc150",))
    assert (found.present, found.whole) == (True, False)


def test_words_are_hashed_alike_everywhere() -> None:
    ids = HashedWords(buckets=11, length=4)(["Pay my bill, please now", "", "BILL"])
    expected = [1 + zlib.crc32(word) % 10 for word in (b"pay", b"my", b"bill", b",")]
    assert ids.tolist() == [expected, [0] * 4, [expected[2], 0, 0, 0]]
    assert ids.dtype == torch.int64
    with pytest.raises(ConfigError, match="Invalid buckets=1, length=24"):
        HashedWords(buckets=1)


def test_a_missing_wordllama_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _wordllama.cache_clear()
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(MissingPackageError, match="pip install wordllama"):
        WordLlamaEmbedding()(["hello"])


def test_static_embeddings_are_means_of_words() -> None:
    pytest.importorskip("wordllama")
    x = WordLlamaEmbedding()(["freeze my account", "please freeze my bank account", "flip a coin"])
    assert (x.shape, x.dtype) == ((3, 256), torch.float32)
    torch.testing.assert_close(x.norm(dim=1), torch.full((3,), 16.0))
    near, far = torch.cosine_similarity(x[:1], x[1:])
    assert near > far + 0.3
    assert torch.equal(WordLlamaEmbedding()([""]), torch.zeros(1, 256))


@pytest.mark.data
def test_the_published_files() -> None:
    root = real_root("CLINC150/data_full.json")
    (found,) = status(root, names=("clinc150",))
    assert (found.whole, found.genuine) == (True, True)
    arrays = load_clinc150(root)
    assert arrays.y_validation is not None
    for y, each in ((arrays.y_train, 100), (arrays.y_validation, 20), (arrays.y_test, 30)):
        assert torch.equal(torch.bincount(y), torch.full((150,), each))
    assert arrays.x_unknown is not None
    assert len(arrays.x_unknown) == 1000
    lengths = (arrays.x_train != 0).sum(1)
    assert (lengths == 24).double().mean() < 0.01  # nearly none is cut


@pytest.mark.data
def test_domains_come_one_after_another() -> None:
    pytest.importorskip("wordllama")
    stream: Any = make_stream("clinc150", seed=3, data_root=real_root("CLINC150/data_full.json"))
    arrays = stream.arrays
    domain_of = {int(y): int(d) for y, d in zip(arrays.y_train, arrays.domain_train, strict=True)}
    tasks = [
        {domain_of[stream.class_order[label]] for label in stream.task_classes(t)}
        for t in range(30)
    ]
    assert all(len(domains) == 1 for domains in tasks)
    in_turn = [tasks[t] for t in range(0, 30, 3)]
    assert tasks == [domain for domain in in_turn for _ in range(3)]
    assert len(set().union(*in_turn)) == 10
    assert len(stream) == 1500
    assert all(len(stream.validation(t)[1]) == 100 for t in range(30))
