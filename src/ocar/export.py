"""The present model as one file that predicts without this package: torch.export or ONNX.

The file takes raw samples, as :meth:`ocar.Learner.predict` does. It normalises and standardises
them, calls the frozen backbone if there is one, then one model or two, and returns the same logits.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ocar.errors import ConfigError, MissingPackageError, ModelError, NumericalError
from ocar.files import write_whole
from ocar.inputs import Intake
from ocar.install import install_line
from ocar.methods.context import mean_prediction
from ocar.models.check import copy_model
from ocar.models.latent import LatentReplay
from ocar.structure import Inputs, Mirror, call, call_each, from_parts, named_tensors, parts_of

LABELS = "ocar.json"
"""Name of the labels and versions in the file, as JSON."""

TOLERANCE = 1e-3
"""Largest difference to ``predict``, as a share of the largest logit and at least of 1.

With 16-bit weights it is four units of rounding, if that is more.
"""

Predictor = Callable[[Inputs], Tensor]


class Frozen(nn.Module):
    """From the parts of raw samples to logits of the classes seen, or outputs of a regression.

    Args:
        intake: Prepares samples; its device is that of the models.
        model: The model.
        weights: Parameters and buffers by name, of each model that predicts.
        names: The parts of a sample, in the order of the arguments.
        classes: How many classes have been seen; None in regression.
        latent: Has the frozen backbone, if there is one.
        mirror: Which models see mirror images.
    """

    def __init__(
        self,
        intake: Intake,
        model: nn.Module,
        weights: Sequence[Mapping[str, Tensor]],
        *,
        names: Sequence[str],
        classes: int | None,
        latent: LatentReplay | None,
        mirror: Mirror = "no",
    ) -> None:
        super().__init__()
        self.models = nn.ModuleList(copy_model(model) for _ in weights)
        for own, values in zip(self.models, weights, strict=True):
            for name, tensor in named_tensors(own).items():
                tensor.data.copy_(values[name])
        self.latent = latent  # its parameters belong to the file
        self._intake, self._names, self._classes = intake, tuple(names), classes
        self._mirror = mirror

    def forward(self, *parts: Tensor) -> Tensor:
        """Logits ``(n, classes)`` for raw samples ``(n, ...)``."""
        x = self._intake.prepare(from_parts(dict(zip(self._names, parts, strict=True))))
        models = [partial(call, model) for model in self.models]
        outputs = call_each(models, x, mirror=self._mirror)
        outputs = self._intake.targets.invert(outputs)
        return mean_prediction(outputs, classes=self._classes)


def write_model(
    path: Path,
    model: Frozen,
    x: Inputs,
    *,
    predict: Predictor,
    values: Mapping[str, Any],
) -> float:
    """Write a model, if it predicts what the learner predicts.

    Args:
        path: The file: ``.pt2`` for torch.export, ``.onnx`` for ONNX.
        model: The model.
        x: At least two raw samples to trace the model with, and to compare it on.
        predict: What it must predict.
        values: Labels and versions, which JSON can hold.

    Returns:
        The largest difference to ``predict``.

    Raises:
        ConfigError: The file has another suffix.
        ModelError: The model cannot be traced or written.
        NumericalError: It predicts something else; nothing was written.
    """
    kinds = {".pt2": (_by_torch, _run_torch), ".onnx": (_by_onnx, _run_onnx)}
    if path.suffix not in kinds:
        raise ConfigError(f"Invalid path {str(path)!r}. Must end in {' or '.join(kinds)}.")
    pack, unpack = kinds[path.suffix]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        program = _trace(model, x)
        try:
            data = pack(program, list(parts_of(x)), dict(values))
            run = unpack(data)
        except (NotImplementedError, RuntimeError) as error:
            raise ModelError(f"The model cannot be written as {path.suffix}: {error}") from error
    difference = 0.0
    for rows in (x, x[:1]):  # also another number of samples than in the trace
        expected = predict(rows).cpu()
        found = run(rows)
        largest = float((found - expected).abs().max()) if expected.numel() else 0.0
        scale = max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
        allowed = scale * max(TOLERANCE, 4 * torch.finfo(expected.dtype).eps)
        if found.shape != expected.shape or not largest <= allowed:
            raise NumericalError(
                f"{str(path)!r} was not written: its predictions differ from the learner's by "
                f"{largest:.2g}, with shapes {tuple(found.shape)} and {tuple(expected.shape)}."
            )
        difference = max(difference, largest)
    write_whole(path, data)
    return difference


def _trace(model: Frozen, x: Inputs) -> torch.export.ExportedProgram:
    inputs = tuple(parts_of(x).values())
    batch = torch.export.Dim("batch", min=1)
    model.eval()
    with torch.no_grad():
        model(*inputs)  # what is made at the first call must not be made inside the trace
        try:
            return torch.export.export(
                model, inputs, dynamic_shapes=(tuple({0: batch} for _ in inputs),)
            )
        except Exception as error:
            raise ModelError(f"The model cannot be traced by torch.export: {error}") from error


def _by_torch(
    program: torch.export.ExportedProgram, names: Sequence[str], values: dict[str, Any]
) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={LABELS: json.dumps(values)})
    return file.getvalue()


def _run_torch(data: bytes) -> Predictor:
    module = torch.export.load(io.BytesIO(data)).module()

    def run(x: Inputs) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = module(*parts_of(x).values())
        return outputs

    return run


def _by_onnx(
    program: torch.export.ExportedProgram, names: Sequence[str], values: dict[str, Any]
) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        hint = install_line("onnx")
        raise MissingPackageError(f"ONNX needs onnx and onnxscript: {hint}") from error
    inputs = [f"x{name}" if name.isdigit() else name or "x" for name in names]
    made = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=inputs, output_names=["logits"]
    )
    assert made is not None
    model = made.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = LABELS, json.dumps(values)
    data: bytes = model.SerializeToString()
    return data


def _run_onnx(data: bytes) -> Predictor:
    """By the reference implementation: what the file says, whatever runs it later."""
    from onnx import load_model_from_string
    from onnx.reference import ReferenceEvaluator

    model = ReferenceEvaluator(load_model_from_string(data))

    def run(x: Inputs) -> Tensor:
        parts = [part.numpy() for part in parts_of(x).values()]
        (outputs,) = model.run(None, dict(zip(model.input_names, parts, strict=True)))
        outputs = np.array(outputs)
        if outputs.dtype.name == "bfloat16":  # PyTorch cannot read NumPy's
            outputs = outputs.astype(np.float32)
        return torch.from_numpy(outputs)

    return run
