"""Which share of the parameters of known architectures has curvature.

    python experiments/model_zoo.py

needs timm and transformers. No weight is loaded and, where an architecture allows it, none is made:
a forward pass on PyTorch's meta device shows which weights are used and how. The result goes to
``results/model-zoo/shares.json``; the documentation lists it.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocar.curvature.found import find_layers
from ocar.curvature.layers import NormLayer
from ocar.curvature.recorder import Recorder
from ocar.curvature.samples import Samples
from ocar.curvature.selection import Selection
from ocar.curvature.table import share
from ocar.models import make_model
from ocar_lab.runs.provenance import describe_process

RESULT = Path("results/model-zoo/shares.json")
SAMPLES = 2

OWN = ("slim-resnet18", "resnet18", "mlp")
TIMM = (
    *("resnet18", "resnet50", "resnext50_32x4d", "seresnet50", "resnetv2_50", "densenet121"),
    *("vgg16_bn", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0"),
    *("tf_efficientnet_lite0", "regnety_004", "ghostnet_100", "inception_v3", "repvgg_a0"),
    *("convnext_atto", "convnext_tiny", "convnextv2_atto", "poolformer_s12", "mixer_s32_224"),
    *("gmlp_s16_224", "vit_tiny_patch16_224", "vit_small_patch16_224", "deit_tiny_patch16_224"),
    *("beit_base_patch16_224", "cait_xxs24_224", "xcit_nano_12_p16_224", "mobilevit_s"),
    *("swin_tiny_patch4_window7_224", "levit_128", "nf_resnet50"),
)
TEXT: dict[str, dict[str, Any]] = {
    "Bert": {},
    "DistilBert": {},
    "Roberta": {},
    "Electra": {},
    "Albert": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
    "OPT": {"hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "pad_token_id": 1},
    "Llama": {
        "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
        "num_attention_heads": 8, "pad_token_id": 0,
    },
    "GPT2": {"pad_token_id": 0},
}  # fmt: skip
IMAGES: dict[str, dict[str, Any]] = {"ViT": {}, "Dinov2": {}, "ConvNext": {}}

Case = Callable[[], tuple[nn.Module, dict[str, Tensor]]]
"""Makes a model and its inputs."""


def own(name: str) -> Case:
    """A network of this package."""

    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        model = make_model(name, image_shape=(3, 32, 32), classes=10)
        return model, {"x": torch.zeros(SAMPLES, 3, 32, 32)}

    return make


def timm(name: str) -> Case:
    """A network of timm."""

    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        model = importlib.import_module("timm").create_model(name, num_classes=10)
        return model, {"x": torch.zeros(SAMPLES, *model.default_cfg["input_size"])}

    return make


def text(name: str) -> Case:
    """A classifier of transformers, of tokens."""

    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        return _classifier(name, "Sequence", TEXT[name]), {
            "input_ids": torch.ones(SAMPLES, 8, dtype=torch.long)
        }

    return make


def images(name: str) -> Case:
    """A classifier of transformers, of images."""

    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        return _classifier(name, "Image", IMAGES[name]), {
            "pixel_values": torch.zeros(SAMPLES, 3, 224, 224)
        }

    return make


def _classifier(name: str, kind: str, options: dict[str, Any]) -> Any:
    library = importlib.import_module("transformers")
    config = getattr(library, f"{name}Config")(num_labels=10, **options)
    return getattr(library, f"AutoModelFor{kind}Classification").from_config(config)


def cases() -> Iterator[tuple[str, str, Case]]:
    """Library, name and model of each architecture."""
    yield from (("ocar", name, own(name)) for name in OWN)
    yield from (("timm", name, timm(name)) for name in TIMM)
    yield from (("transformers", name, text(name)) for name in TEXT)
    yield from (("transformers", name, images(name)) for name in IMAGES)


def measure(make: Case) -> dict[str, Any]:
    """Numbers, the share of them that has curvature, and what has none beside norm layers."""
    try:
        with torch.device("meta"):
            return _measure(*make())
    except (RuntimeError, NotImplementedError):  # a forward pass that asks for a number
        return _measure(*make())


def _measure(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Any]:
    model.eval()
    chosen = find_layers(model, Selection(model))
    layers = {layer.name: layer for layer in chosen if not isinstance(layer, NormLayer)}
    recorder = Recorder(layers, model)
    with recorder:
        model(*inputs.values()) if "x" in inputs else model(**inputs)
    samples = Samples(layers)
    complete = samples.complete(recorder.records, SAMPLES)
    for name, records in complete.items():
        for index, one in enumerate(records):  # raises where the rows do not fit the samples
            samples.by_sample(name, index, one, one.x.unsqueeze(0), SAMPLES)
    covered = {p for name in complete for p in layers[name].parameters}
    kinds = {name: "curvature" for name, p in model.named_parameters() if p in covered}
    norms = {p for layer in chosen if isinstance(layer, NormLayer) for p in layer.parameters}
    others = {
        type(module).__name__
        for module in model.modules()
        for p in module.parameters(recurse=False)
        if p.requires_grad and p not in covered | norms
    }
    return {
        "numbers": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "share": round(share(model, kinds), 4),
        "without": sorted(others),
    }


def main() -> None:
    """Measure all architectures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for library, name, make in cases():
        rows.append({"library": library, "name": name, **measure(make)})
        print(f"{library:<14}{name:<32}{100 * rows[-1]['share']:6.1f} %", flush=True)
    made = describe_process(torch.device("cpu"))
    for name in ("timm", "transformers"):
        made["versions"][name] = importlib.import_module(name).__version__
    made["command"] = ["python", "experiments/model_zoo.py"]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**made, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
