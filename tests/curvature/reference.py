"""Dense references: loops over samples, classes and locations, and plain autograd.

Slow, and meant to be obviously right. Nothing here comes from the package.

A batch of n samples has *seeds*: tensors of the outputs' shape that are sent
through one backward pass each. For the coupled target there is one for each
class, which holds the scores of all samples; for the independent target there
is one for each class and sample, zero for all other samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn

Target = Literal["coupled", "independent"]


# --- the Fisher of the outputs ------------------------------------------------------------------


def probabilities(logits: Tensor, active: Tensor | None = None) -> Tensor:
    """Softmax of one sample's logits, ``(classes,)``, over the active ones."""
    logits = logits.detach()
    exp = [
        float(torch.exp(z - logits.max())) if active is None or active[k] else 0.0
        for k, z in enumerate(logits)
    ]
    return torch.tensor([e / sum(exp) for e in exp])


def categorical_fisher(logits: Tensor, active: Tensor | None = None) -> Tensor:
    """diag(p) − ppᵀ of one sample."""
    p = probabilities(logits, active)
    return torch.diag(p) - torch.outer(p, p)


def class_columns(
    outputs: Tensor,
    *,
    active: Tensor | None = None,
    weights: Tensor | None = None,
    variance: float | None = None,
) -> list[Tensor]:
    """For each class k the scores √(w p_k)(e_k − p) of all samples, ``(n, outputs)``.

    With a variance the likelihood is Gaussian, and they are √w e_k / σ.
    """
    n, k = outputs.shape
    eye = torch.eye(k)
    result = []
    for c in range(k):
        column = torch.zeros(n, k)
        for i in range(n):
            if variance is not None:
                column[i] = eye[c] / variance**0.5
            else:
                p = probabilities(outputs[i], active)
                column[i] = p[c].sqrt() * (eye[c] - p)
            if weights is not None:
                column[i] *= float(weights[i]) ** 0.5
        result.append(column)
    return result


def seeds_of(columns: Sequence[Tensor], target: Target) -> list[Tensor]:
    """What is sent through one backward pass each."""
    if target == "coupled":
        return list(columns)
    seeds = []
    for column in columns:
        for i in range(column.shape[0]):
            seed = torch.zeros_like(column)
            seed[i] = column[i]
            seeds.append(seed)
    return seeds


# --- what layers see ----------------------------------------------------------------------------


def record(
    model: nn.Module, x: Tensor, names: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """A forward pass: the model's outputs, and inputs and outputs of the named layers."""
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    handles = []
    for name in names:

        def hook(_: nn.Module, args: tuple[Tensor], out: Tensor, name: str = name) -> Tensor:
            inputs[name], outputs[name] = args[0].detach().clone(), out
            return out.clone()  # what follows may write into the copy

        handles.append(model.get_submodule(name).register_forward_hook(hook))
    result = model(x)
    for handle in handles:
        handle.remove()
    return result, inputs, outputs


def backward(outputs: Tensor, points: Sequence[Tensor], seed: Tensor) -> tuple[Tensor, ...]:
    """Gradients of ⟨seed, outputs⟩."""
    return torch.autograd.grad(
        (outputs * seed).sum(), points, retain_graph=True, materialize_grads=True
    )


def source_index(position: int, size: int, mode: str) -> int | None:
    """Which element of a line of ``size`` stands at a padded position; None for a zero."""
    if 0 <= position < size:
        return position
    if mode == "circular":
        return position % size
    if mode == "replicate":
        return min(max(position, 0), size - 1)
    if mode == "reflect":
        return -position if position < 0 else 2 * (size - 1) - position
    return None


def patches(conv: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """What a convolution multiplies its kernel with, ``(n, groups, L, d_in)``."""
    n, channels, *sizes = x.shape
    kernel, stride, dilation = conv.kernel_size, conv.stride, conv.dilation
    before, after = [], []
    for axis in range(len(sizes)):
        span = dilation[axis] * (kernel[axis] - 1)
        if conv.padding == "same":
            before.append(span // 2)
            after.append(span - span // 2)
        else:
            amount = 0 if conv.padding == "valid" else conv.padding[axis]
            before.append(amount)
            after.append(amount)
    counts = [
        (sizes[d] + before[d] + after[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d in range(len(sizes))
    ]
    in_group = channels // conv.groups
    rows = []
    for i, group in product(range(n), range(conv.groups)):
        for location in product(*(range(count) for count in counts)):
            row = []
            for c in range(group * in_group, (group + 1) * in_group):
                for offset in product(*(range(size) for size in kernel)):
                    index = [
                        source_index(
                            location[d] * stride[d] + offset[d] * dilation[d] - before[d],
                            sizes[d],
                            conv.padding_mode,
                        )
                        for d in range(len(sizes))
                    ]
                    row.append(0.0 if None in index else float(x[(i, c, *index)]))
            rows.append(row)
    return torch.tensor(rows).view(n, conv.groups, -1, in_group * conv.weight[0, 0].numel())


def input_locations(layer: nn.Module, x: Tensor, *, bias: bool) -> Tensor:
    """A layer's inputs, ``(n, groups, L, d_in)``, a one appended for the bias."""
    if isinstance(layer, nn.Linear):
        a = x.reshape(x.shape[0], 1, -1, x.shape[-1])
    else:
        a = patches(layer, x)
    return torch.cat([a, torch.ones(*a.shape[:3], 1)], dim=3) if bias else a


def gradient_locations(layer: nn.Module, g: Tensor) -> Tensor:
    """One seed's gradients at a layer's output, ``(n, groups, L, d_out)``."""
    n = g.shape[0]
    if isinstance(layer, nn.Linear):
        return g.reshape(n, 1, -1, g.shape[-1])
    per_group = g.shape[1] // layer.groups
    rows = [
        g[:, k * per_group : (k + 1) * per_group].reshape(n, per_group, -1).mT
        for k in range(layer.groups)
    ]
    return torch.stack(rows, dim=1)


# --- Kronecker factors --------------------------------------------------------------------------


def input_factor(a: Tensor, *, sharing: str, weights: Tensor | None = None) -> Tensor:
    """A for each group, from inputs ``(n, groups, L, d_in)``."""
    n, groups, locations, d = a.shape
    total = n if weights is None else float(weights.sum())
    result = torch.zeros(groups, d, d)
    for i, k in product(range(n), range(groups)):
        weight = 1.0 if weights is None else float(weights[i])
        if sharing == "reduce":
            mean = sum(a[i, k, l] for l in range(locations)) / locations
            result[k] += weight / total * torch.outer(mean, mean)
        else:
            for l in range(locations):
                result[k] += weight / total * torch.outer(a[i, k, l], a[i, k, l])
    return result


def gradient_factor(gradients: Sequence[Tensor], *, sharing: str) -> Tensor:
    """G for each group, from one ``(n, groups, L, d_out)`` for each seed."""
    n, groups, locations, d = gradients[0].shape
    result = torch.zeros(groups, d, d)
    for g in gradients:
        for i, k in product(range(n), range(groups)):
            if sharing == "reduce":
                total = sum(g[i, k, l] for l in range(locations))
                result[k] += torch.outer(total, total) / n
            else:
                for l in range(locations):
                    result[k] += torch.outer(g[i, k, l], g[i, k, l]) / (n * locations)
    return result


def kronecker_factors(
    model: nn.Module,
    x: Tensor,
    names: Sequence[str],
    *,
    target: Target = "coupled",
    sharing: str = "expand",
    active: Tensor | None = None,
    weights: Tensor | None = None,
    weighting: str = "gradients",
    variance: float | None = None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """A and G of the named layers."""
    outputs, inputs, points = record(model, x, names)
    columns = class_columns(outputs, active=active, weights=weights, variance=variance)
    passes = [backward(outputs, list(points.values()), s) for s in seeds_of(columns, target)]
    result = {}
    for position, name in enumerate(points):
        layer = model.get_submodule(name)
        a = input_locations(layer, inputs[name], bias=trains_bias(layer))
        gradients = [gradient_locations(layer, one[position]) for one in passes]
        result[name] = (
            input_factor(a, sharing=sharing, weights=weights if weighting == "both" else None),
            gradient_factor(gradients, sharing=sharing),
        )
    return result


# --- inverses -----------------------------------------------------------------------------------


def trains_bias(layer: nn.Module) -> bool:
    """Whether a layer has a bias that is not frozen."""
    return layer.bias is not None and layer.bias.requires_grad


def as_matrix(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A layer's weight and bias (or their gradients) as ``(groups, d_out, d_in)``."""
    groups = getattr(layer, "groups", 1)
    rows = weight.reshape(weight.shape[0], -1)
    if bias is not None:
        rows = torch.cat([rows, bias.unsqueeze(1)], dim=1)
    return rows.reshape(groups, -1, rows.shape[1])


def damped_block(
    a: Tensor, g: Tensor, damping: float, *, kind: str, g_dim: int | None = None
) -> Tensor:
    """The damped curvature of one group as a matrix, for vec of ``(d_out, d_in)`` row by row."""
    if kind == "exact":
        size = a.shape[0] * g.shape[0]
        return torch.kron(g, a) + damping * torch.eye(size)
    mean_a = float(a.trace()) / a.shape[0]
    mean_g = float(g.trace()) / (g_dim or g.shape[0])
    pi = (mean_a / mean_g) ** 0.5 if mean_a > 0 and mean_g > 0 else 1.0
    damped_a = a + pi * damping**0.5 * torch.eye(a.shape[0])
    damped_g = g + damping**0.5 / pi * torch.eye(g.shape[0])
    return torch.kron(damped_g, damped_a)


def preconditioned(
    layer: nn.Module,
    factors: tuple[Tensor, Tensor],
    damping: float,
    *,
    kind: str = "factored",
    g_dim: int | None = None,
) -> Tensor:
    """A layer's gradient times the inverse of the damped block, ``(groups, d_out, d_in)``."""
    bias = layer.bias.grad if trains_bias(layer) else None
    grad = as_matrix(layer, layer.weight.grad, bias)
    groups = []
    for a, g, one in zip(*factors, grad, strict=True):
        block = damped_block(a, g, damping, kind=kind, g_dim=g_dim)
        groups.append(torch.linalg.solve(block, one.flatten()).view_as(one))
    return torch.stack(groups)


# --- Fisher matrices of parameters --------------------------------------------------------------


def full_fisher(
    model: nn.Module,
    x: Tensor,
    *,
    target: Target = "independent",
    parameters: Sequence[nn.Parameter] | None = None,
    active: Tensor | None = None,
    weights: Tensor | None = None,
    variance: float | None = None,
) -> Tensor:
    """1/n Σ of the outer products of the parameters' gradients, one for each seed."""
    points = (
        [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
    )
    outputs = model(x)
    columns = class_columns(outputs, active=active, weights=weights, variance=variance)
    size = sum(p.numel() for p in points)
    fisher = torch.zeros(size, size)
    for seed in seeds_of(columns, target):
        flat = torch.cat([g.flatten() for g in backward(outputs, list(points), seed)])
        fisher += torch.outer(flat, flat) / outputs.shape[0]
    return fisher


def layer_fisher(model: nn.Module, x: Tensor, name: str, **options: object) -> Tensor:
    """The exact Fisher of one linear layer, for vec of ``(d_out, d_in)`` row by row."""
    layer = model.get_submodule(name)
    own = [layer.weight, layer.bias] if trains_bias(layer) else [layer.weight]
    fisher = full_fisher(model, x, parameters=own, **options)
    numbers = torch.arange(sum(p.numel() for p in own)).split([p.numel() for p in own])
    bias = numbers[1] if len(own) == 2 else None
    order = as_matrix(layer, numbers[0].view_as(layer.weight), bias).flatten()
    return fisher[order][:, order]


def norm_layer_fisher(
    model: nn.Module, x: Tensor, name: str, *, target: Target = "coupled"
) -> Tensor:
    """1/n Σ of outer products of each sample's score, ``(units, p, p)``, p parameters a unit.

    The score of sample i is the gradient of the scale and shift through the i-th
    output of the layer alone.
    """
    outputs, inputs, points = record(model, x, [name])
    layer = model.get_submodule(name)
    own = [p for p in (layer.weight, layer.bias) if p is not None and p.requires_grad]
    units = own[0].numel()
    fisher = torch.zeros(units, len(own), len(own))
    for seed in seeds_of(class_columns(outputs), target):
        (g,) = backward(outputs, [points[name]], seed)
        for i in range(x.shape[0]):
            out = layer(inputs[name])
            scores = torch.autograd.grad((out[i] * g[i]).sum(), own)
            for u in range(units):
                score = torch.stack([s.flatten()[u] for s in scores])
                fisher[u] += torch.outer(score, score) / x.shape[0]
    return fisher
