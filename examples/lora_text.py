"""LoRA on BERT, learned online by OCAR: only the adapters and the output layer train.

    pip install ocar transformers peft
    OCAR_DATA=FOLDER python examples/lora_text.py [--model bert-base-uncased] [--limit 100]

With ``--model``, a pretrained encoder of transformers with its own tokenizer; without, a small BERT
with random weights on hashed words, which downloads nothing and shows the mechanics alone. The
intents of CLINC150 come in the order of their domains. Inputs are dictionaries, as transformers
makes them: token ids and a mask.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor, nn
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
)

import ocar
from ocar.datasets import data_root
from ocar.datasets.clinc import Sentences, read_clinc150
from ocar.datasets.texts import HashedWords

ATTENTION = "eager"  # the Fisher's columns go back through it together, by vmap

Encode = Callable[[Sequence[str]], dict[str, Tensor]]


class Classifier(nn.Module):
    """An encoder with LoRA in its attention, the mean over the tokens, and an output layer."""

    def __init__(self, encoder: nn.Module, *, rank: int = 4) -> None:
        super().__init__()
        lora = LoraConfig(r=rank, target_modules=["query", "value"])
        self.encoder: Any = get_peft_model(encoder, lora)  # freezes all else
        self.head = nn.Linear(self.encoder.config.hidden_size, 256)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits ``(n, 256)`` of ids and mask ``(n, length)``."""
        found = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        mask = attention_mask[..., None]
        mean = (found.last_hidden_state * mask).sum(1) / mask.sum(1)
        logits: Tensor = self.head(mean)
        return logits


def small_bert() -> tuple[nn.Module, Encode]:
    """A BERT with random weights, and the encoder of its sentences."""
    words = HashedWords(buckets=4096, length=20)
    config = BertConfig(
        vocab_size=words.buckets,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=words.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=ATTENTION,
    )

    def encode(texts: Sequence[str]) -> dict[str, Tensor]:
        ids = words(texts)
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    return BertModel(config), encode


def pretrained(name: str) -> tuple[nn.Module, Encode]:
    """An encoder of transformers, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    options = {"padding": "max_length", "truncation": True, "max_length": 32}

    def encode(texts: Sequence[str]) -> dict[str, Tensor]:
        found = tokenizer(list(texts), return_tensors="pt", **options)
        return {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}

    return AutoModel.from_pretrained(name, attn_implementation=ATTENTION), encode


def main() -> None:
    """Learn the first batches; print the accuracy on each before it is learned."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a name of transformers' hub, or a folder")
    parser.add_argument("--limit", type=int, default=300, help="batches to learn")
    given = parser.parse_args()
    torch.manual_seed(0)
    encoder, encode = small_bert() if given.model is None else pretrained(given.model)
    model = Classifier(encoder)
    learner = ocar.OCAR(model, memory=1500, head="head", seed=0)
    share = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{share:,} of {sum(p.numel() for p in model.parameters()):,} parameters learn")

    data = read_clinc150(data_root())
    texts, labels = in_order(data.train, [i for mine in data.domains.values() for i in mine])
    right = seen = 0
    for start in range(0, min(len(texts), 10 * given.limit), 10):
        x, y = encode(texts[start : start + 10]), labels[start : start + 10]
        if learner.classes:
            said = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
            right, seen = right + int((said == y).sum()), seen + len(y)
        learner.learn(x, y)
    print(f"{len(learner.classes)} intents, accuracy before learning {right / max(seen, 1):.3f}")


def in_order(part: Sentences, intents: Sequence[str], group: int = 5) -> tuple[list[str], Tensor]:
    """The sentences, shuffled within each group of intents, and their labels."""
    labels = torch.tensor([intents.index(intent) for intent in part.intents])
    shuffled = torch.randperm(len(labels))
    order = shuffled[torch.argsort(labels[shuffled] // group, stable=True)]
    return [part.texts[i] for i in order.tolist()], labels[order]


if __name__ == "__main__":
    main()
