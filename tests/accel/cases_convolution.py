"""Cases of the operations on convolutions and what follows them, and of a whole ResNet."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from implementations import Case, Implementation, numbers
from tiny_resnet import TinyResNet
from tolerances import SINGLE_KERNEL
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.layout import is_channels_last

# --- patches ------------------------------------------------------------------------------------

# Channels, side of the kernel, stride, padding; number, height and width of the images.
PATCHES: dict[str, tuple[int, ...]] = {
    "stem": (3, 3, 1, 1, 2, 8, 8),
    "with a stride": (4, 3, 2, 1, 3, 6, 6),
    "one by one": (5, 1, 1, 0, 2, 7, 5),
    "one by one with a stride": (8, 1, 2, 0, 3, 5, 4),
    "odd": (7, 3, 2, 1, 2, 9, 11),
    "no padding": (8, 3, 1, 0, 1, 5, 4),
    "more padding than it needs": (4, 2, 1, 2, 2, 3, 3),
    "many channels": (20, 3, 1, 1, 2, 4, 4),
    "more than one block of patches": (1, 2, 1, 0, 3, 14, 14),
}
# These have no kernel.
OTHERS: dict[str, tuple[nn.Conv1d | nn.Conv2d, Tensor]] = {
    "groups": (nn.Conv2d(4, 4, 3, groups=2), numbers(2, 4, 6, 5)),
    "dilation": (nn.Conv2d(4, 4, 3, dilation=2), numbers(2, 4, 6, 7)),
    "flat kernel": (nn.Conv2d(4, 4, (1, 3), (2, 1), (0, 1)), numbers(2, 4, 6, 5)),
    "same padding": (nn.Conv2d(4, 4, 2, padding="same"), numbers(2, 4, 6, 5)),
    "circular": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), numbers(2, 4, 6, 5)),
    "one dimension": (nn.Conv1d(4, 4, 3, stride=2, groups=2, dilation=2), numbers(2, 4, 11)),
}


def laid_out(t: Tensor, *, last: bool) -> Tensor:
    """Images or kernels, channels last or first."""
    kind = torch.channels_last if last else torch.contiguous_format
    return t.contiguous(memory_format=kind)


def lay_out(conv: Any, *, last: bool) -> Any:
    """A copy of a convolution whose weight lies channels last or first."""
    conv = copy.deepcopy(conv)
    conv.weight.data = laid_out(conv.weight.data, last=last)
    return conv


def run_patches(x: Tensor, conv: Any, implementation: Implementation) -> list[Tensor]:
    conv = copy.deepcopy(conv).to(implementation.device, implementation.dtype)
    return [implementation["patches"](implementation.given(x), conv)]


def reference_patches(x: Tensor, conv: nn.Conv1d | nn.Conv2d) -> list[Tensor]:
    """By PyTorch's unfold, group by group; channels last where the weight is."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    x = functional.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
    kernel, stride, dilation = conv.kernel_size, conv.stride, conv.dilation
    if isinstance(conv, nn.Conv1d):
        x, kernel, stride, dilation = x.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    found = [
        functional.unfold(part, kernel, dilation=dilation, stride=stride)
        for part in x.chunk(conv.groups, dim=1)
    ]
    rows = torch.stack(found, dim=1)  # (n, groups, channels · taps, L)
    if is_channels_last(conv.weight):
        channels, taps = conv.weight.shape[1], math.prod(kernel)
        rows = rows.unflatten(2, (channels, taps)).transpose(2, 3).flatten(2, 3)
    return [rows]


def patch_cases() -> list[Case]:
    cases = []
    for (name, sizes), last in product(PATCHES.items(), (False, True)):
        channels, side, stride, padding, n, height, width = sizes
        conv = lay_out(nn.Conv2d(channels, 2, side, stride, padding), last=last)
        x = laid_out(numbers(n, channels, height, width), last=last)
        full = f"{name}, channels {'last' if last else 'first'}"
        run, reference = partial(run_patches, x, conv), partial(reference_patches, x, conv)
        cases.append(Case("patches", full, run, reference, close=0))
    for (name, (conv, x)), last in product(OTHERS.items(), (False, True)):
        if last and x.dim() == 3:
            continue
        conv = lay_out(conv, last=last)
        full = f"{name}, channels {'last' if last else 'first'}"
        run, reference = partial(run_patches, x, conv), partial(reference_patches, x, conv)
        cases.append(Case("patches", full, run, reference, close=0, only=("plain",)))
    return cases


# --- weight_gradients ---------------------------------------------------------------------------

# Input channels, output channels, side of the kernel, stride and padding of each layer.
SAME = ((3, 5, 3, 1, 1), (5, 34, 3, 1, 1), (34, 4, 3, 1, 1))
MIXED = ((3, 5, 3, 1, 1), (5, 8, 3, 2, 1), (8, 18, 1, 2, 0), (18, 4, 2, 1, 0), (4, 6, 3, 2, 0))
ALIGNED = ((8, 20, 3, 1, 1), (20, 12, 3, 2, 1))
WEIGHT_GRADIENTS: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...], bool, bool]] = {
    # Layers; images, height and width; whether images and weights are channels last.
    "channels first": (SAME, (2, 8, 8), False, False),
    "one row of a block": (SAME[:1], (3, 2, 16), False, False),
    "several shares": (SAME[:1], (9, 8, 8), False, False),
    "channels last": (MIXED, (2, 15, 14), True, False),
    "several shares, channels last": (MIXED[:2], (3, 19, 17), True, False),
    "aligned, weights channels last": (ALIGNED, (2, 9, 7), True, True),
}


def convolutions(
    layers: Sequence[tuple[int, ...]], images: tuple[int, ...], *, x_last: bool, w_last: bool
) -> list[tuple[nn.Conv2d, Tensor, Tensor]]:
    """Convolutions one after another, with their inputs and gradients at their outputs."""
    n, height, width = images
    x, found = numbers(n, layers[0][0], height, width), []
    for number, (channels, outputs, side, stride, padding) in enumerate(layers):
        conv = nn.Conv2d(channels, outputs, side, stride, padding, bias=False).double()
        weight = numbers(*conv.weight.shape, seed=number) / math.sqrt(channels * side**2)
        conv.weight.data = laid_out(weight.float().double(), last=w_last)
        y = conv(x).detach()
        g = numbers(*y.shape, seed=number + 50)
        found.append((conv, laid_out(x, last=x_last), laid_out(g, last=x_last)))
        x = y.relu().float().double()
    return found


def run_weight_gradients(
    layers: list[tuple[nn.Conv2d, Tensor, Tensor]], implementation: Implementation
) -> list[Tensor]:
    convs = [
        copy.deepcopy(conv).to(implementation.device, implementation.dtype) for conv, _, _ in layers
    ]
    given = [(implementation.given(x), implementation.given(g)) for _, x, g in layers]
    results = implementation["weight_gradients"](convs, given)
    if implementation.name == "triton":
        assert [r.stride() for r in results] == [conv.weight.stride() for conv in convs]
    return list(results)


def reference_weight_gradients(layers: list[tuple[nn.Conv2d, Tensor, Tensor]]) -> list[Tensor]:
    """By autograd."""
    results = []
    for conv, x, g in layers:
        weight = conv.weight.detach().clone().requires_grad_()
        y = functional.conv2d(x, weight, None, conv.stride, conv.padding)
        results.append(torch.autograd.grad(y, weight, g)[0])
    return results


def weight_gradient_cases() -> list[Case]:
    cases = []
    for name, (layers, images, x_last, w_last) in WEIGHT_GRADIENTS.items():
        given = convolutions(layers, images, x_last=x_last, w_last=w_last)
        run = partial(run_weight_gradients, given)
        reference = partial(reference_weight_gradients, given)
        cases.append(Case("weight_gradients", name, run, reference))
    return cases


# --- norm_act -----------------------------------------------------------------------------------

# Shape of the images, channels last, a shortcut, options of the layer.
NORMS: dict[str, tuple[tuple[int, ...], bool, bool, dict[str, Any]]] = {
    "channels first": ((3, 5, 4, 6), False, False, {}),
    "channels last": ((3, 5, 4, 6), True, False, {}),
    "shortcut": ((3, 2, 5, 7), False, True, {}),
    "shortcut, channels last": ((3, 6, 5, 7), True, True, {}),
    "large": ((3, 2, 20, 21), False, True, {}),
    "in parts": ((5, 2, 90, 91), False, False, {}),
    "in parts, shortcut": ((9, 3, 64, 64), False, True, {}),
    "in parts, channels last": ((3, 6, 111, 109), True, True, {}),
    "two numbers a channel": ((2, 1, 1, 1), False, True, {}),
    "momentum and eps": ((4, 3, 3, 3), False, False, {"momentum": 0.3, "eps": 1e-2}),
    "no running statistics": ((4, 3, 3, 3), False, True, {"track_running_stats": False}),
}


def make_norm(channels: int, options: dict[str, Any]) -> nn.BatchNorm2d:
    """A layer whose scale, shift and running statistics are not 1 and 0."""
    norm = nn.BatchNorm2d(channels, **options).double()
    with torch.no_grad():
        for number, tensor in enumerate(norm.state_dict().values()):
            if tensor.is_floating_point():
                tensor.copy_((numbers(channels, seed=number).abs() + 0.5).float())
    return norm


def norm_inputs(shape: tuple[int, ...], *, last: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Images, a shortcut, and three columns of gradients; only the images are channels last."""
    x = (3 * numbers(*shape, seed=1) + 1).float().double()
    return laid_out(x, last=last), numbers(*shape, seed=2), numbers(3, *shape, seed=3)


def run_norm(
    shape: tuple[int, ...], last: bool, short: bool, options: dict[str, Any], how: Implementation
) -> list[Tensor]:
    """Outputs, gradients of one column and of several at once, running statistics."""
    norm = make_norm(shape[1], options).to(how.device, how.dtype)
    x, shortcut, columns = (how.given(t) for t in norm_inputs(shape, last=last))
    points = [x.requires_grad_(), norm.weight, norm.bias]
    points += [shortcut.requires_grad_()] if short else []
    y = how["norm_act"](norm, x, shortcut) if short else how["norm_act"](norm, x)
    assert is_channels_last(y) == is_channels_last(x)

    def pull_back(g: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, points, g, retain_graph=True)

    if how.name == "plain":  # PyTorch has no batched backward pass for BatchNorm
        pulled = [torch.stack(parts) for parts in zip(*map(pull_back, columns), strict=True)]
    else:
        pulled = list(torch.func.vmap(pull_back)(columns))
    return [y, *pull_back(columns[0]), *pulled, *norm.buffers()]


def reference_norm(
    shape: tuple[int, ...], last: bool, short: bool, options: dict[str, Any]
) -> list[Tensor]:
    """By its formula; autograd differentiates mean and variance."""
    norm = make_norm(shape[1], options)
    x, shortcut, columns = norm_inputs(shape, last=last)
    points = [x.clone().requires_grad_(), norm.weight, norm.bias]
    points += [shortcut.requires_grad_()] if short else []
    mean = points[0].mean((0, 2, 3), keepdim=True)
    spread = (points[0] - mean).square().mean((0, 2, 3), keepdim=True)
    scale, shift = norm.weight.view(1, -1, 1, 1), norm.bias.view(1, -1, 1, 1)
    y = scale * (points[0] - mean) / (spread + norm.eps).sqrt() + shift
    y = (y + shortcut if short else y).clamp(min=0)
    pulled = [torch.autograd.grad(y, points, g, retain_graph=True) for g in columns]
    stacked = [torch.stack(parts) for parts in zip(*pulled, strict=True)]
    running = []
    if norm.running_mean is not None:
        count = x.numel() // shape[1]
        unbiased = spread.detach().flatten() * count / (count - 1)
        rate = norm.momentum
        running = [
            (1 - rate) * norm.running_mean + rate * mean.detach().flatten(),
            (1 - rate) * norm.running_var + rate * unbiased,
            torch.tensor(1),
        ]
    return [y, *pulled[0], *stacked, *running]


def norm_cases() -> list[Case]:
    return [
        Case(
            "norm_act", name, partial(run_norm, *given), partial(reference_norm, *given),
            # The gradient of a channel with two numbers is nothing but rounding.
            close=1e-4 if "two" not in name else 1e-2, rounded=1e-4 if "two" not in name else 1e-2,
        )
        for name, given in NORMS.items()
    ]  # fmt: skip


# --- divergence ---------------------------------------------------------------------------------

# Options of the network and of the question.
QUESTIONS: dict[str, dict[str, Any]] = {
    "one window": {},
    "several windows": {"side": 9, "pool": nn.AvgPool2d(2)},
    "channels last": {"last": True},
    "one sample of a batch": {"asked": 1},
    "a pooling without a kernel": {"pool": nn.MaxPool2d(4)},
    "hundreds of outputs": {"units": 150},
    "odd sizes": {"channels": 1, "widths": (5, 7), "side": 5},
}


def question(
    *,
    channels: int = 3,
    widths: tuple[int, int] = (4, 8),
    side: int = 8,
    units: int = 6,
    pool: nn.Module | None = None,
    last: bool = False,
    n: int = 3,
    asked: int = 2,
) -> tuple[TinyResNet, Tensor, Tensor, Tensor]:
    """A network, images, which outputs stand for a class, and log-probabilities from before."""
    model = TinyResNet(channels, widths, side, units=units, pool=pool).double().train()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            spread = 1 / math.sqrt(parameter[0].numel()) if parameter.dim() > 1 else 1.0
            parameter.copy_((numbers(*parameter.shape, seed=number) * spread).float())
    if last:
        for block in model.blocks:
            for conv in (block.conv1, block.conv2):
                conv.weight.data = laid_out(conv.weight.data, last=True)
    active = torch.arange(units) < units - 1
    rows = numbers(asked, units, seed=1).masked_fill(~active, -1000.0)
    before = functional.log_softmax(rows, dim=-1).float().double()
    return model, numbers(n, channels, side, side), active, before


def run_divergence(options: dict[str, Any], implementation: Implementation) -> list[Tensor]:
    model, x, active, before = question(**options)
    model = model.to(implementation.device, implementation.dtype)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    given = implementation.given(x), active.to(implementation.device), implementation.given(before)
    found = implementation["divergence"](model, *given)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    return [found]


def reference_divergence(options: dict[str, Any]) -> list[Tensor]:
    """Layer by layer, and the divergence as a sum over the outputs that stand for a class."""
    model, x, active, before = question(**options)

    def norm(layer: nn.Module, t: Tensor) -> Tensor:
        weight, bias = layer.weight, layer.bias
        return functional.batch_norm(t, None, None, weight, bias, training=True, eps=layer.eps)

    with torch.no_grad():
        t = norm(model.stem[1], model.stem[0](x)).relu()
        for block in model.blocks:
            inner = block.conv2(norm(block.bn1, block.conv1(t)).relu())
            convolved = isinstance(block.shortcut, nn.Sequential)
            short = norm(block.shortcut[1], block.shortcut[0](t)) if convolved else t
            t = (norm(block.bn2, inner) + short).relu()
        outputs = model.head(model.pool(t).flatten(1))[-len(before) :]
    results = []
    for row, old in zip(outputs, before, strict=True):
        total = sum(math.exp(float(z)) for z in row[active])
        results.append(
            sum(
                math.exp(float(p)) * (float(p) - float(z) + math.log(total))
                for p, z, known in zip(old, row, active, strict=True)
                if known
            )
        )
    return [torch.tensor(results, dtype=torch.float64)]


def divergence_cases() -> list[Case]:
    return [
        Case(
            "divergence", name, partial(run_divergence, options),
            partial(reference_divergence, options), close=1e-4, rounded=2e-2,
            definition=SINGLE_KERNEL,  # predictions are in single precision
        )
        for name, options in QUESTIONS.items()
    ]  # fmt: skip


CASES = [*patch_cases(), *weight_gradient_cases(), *norm_cases(), *divergence_cases()]
