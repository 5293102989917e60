"""Sentences as tensors: hashed words, or the mean of static word embeddings.

An encoder is a fixed function of the sentence: it is applied once, before the stream, and nothing
of it learns. Neither needs a vocabulary, which an online learner does not have: the words of
tomorrow are not known today.
"""

from __future__ import annotations

import importlib
import logging
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocar.errors import ConfigError, DataError, MissingPackageError

Encoder = Callable[[Sequence[str]], Tensor]
"""From n sentences to samples ``(n, d)``: features in floating point, or token ids of int64."""

_WORD = re.compile(r"\w+|[^\w\s]")

PADDING = 0
"""The token id after the end of a sentence."""


@dataclass(frozen=True, kw_only=True)
class HashedWords:
    """Token ids without a vocabulary: each word is hashed into one of some buckets.

    A token is a word in lower case or a punctuation mark. Its id is ``1 + crc32(token) mod
    (buckets − 1)``, the same on every machine. Words that share a bucket share an embedding: of w
    words each has another one in its bucket with probability of about ``w / buckets``. Id 0 is
    padding, so a mask is ``ids != 0``.
    """

    buckets: int = 8192  #: Token ids, with that of the padding; the rows of an embedding.
    length: int = 24  #: Ids of a sentence; a longer one is cut, a shorter one is padded.

    def __post_init__(self) -> None:
        if self.buckets < 2 or self.length < 1:
            raise ConfigError(
                f"Invalid buckets={self.buckets}, length={self.length}. Must be at least 2 and 1."
            )

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Token ids ``(n, length)``, int64."""
        ids = torch.full((len(texts), self.length), PADDING)
        for row, text in zip(ids, texts, strict=True):
            tokens = _WORD.findall(text.lower())[: self.length]
            hashes = [zlib.crc32(token.encode("utf-8", "replace")) for token in tokens]
            row[: len(tokens)] = torch.tensor(hashes, dtype=torch.int64) % (self.buckets - 1) + 1
        return ids


@dataclass(frozen=True, kw_only=True)
class WordLlamaEmbedding:
    """The mean of wordllama's static embeddings of a sentence's tokens.

    Embedding and tokenizer are inside the package ``wordllama`` (19 MB); nothing is downloaded. The
    mean is scaled to the length √256, so that a feature is of the order of one.
    """

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features ``(n, 256)``, float32.

        Raises:
            MissingPackageError: wordllama is not installed.
        """
        means = torch.from_numpy(_wordllama().embed(list(texts)))
        lengths = means.norm(dim=1, keepdim=True).clamp_(min=1e-6)  # no token: zero
        return means / lengths * means.shape[1] ** 0.5


@cache
def _wordllama() -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        wordllama = importlib.import_module("wordllama")
    except ImportError as error:
        raise MissingPackageError(
            f"Static word embeddings need wordllama ({error}): pip install wordllama"
        ) from error
    finally:  # it sets up logging for the whole process when it is imported
        root.handlers[:] = handlers
        root.setLevel(level)
    try:
        # By default it looks for its tokenizer in the wrong one of its folders, then downloads it.
        inside = Path(str(wordllama.__file__)).parent
        return wordllama.WordLlama.load(cache_dir=inside, disable_download=True)
    except (OSError, ValueError) as error:
        raise DataError(f"wordllama's own files cannot be read: {error}") from error
