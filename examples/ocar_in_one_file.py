"""OCAR in one file: the whole method from top to bottom, with PyTorch and nothing else.

    python examples/ocar_in_one_file.py

Urettini & Carta, "Online Curvature-Aware Replay" (ICML 2025), as its authors' code has it: exact
Fisher over the classes seen, K-FAC with factored damping, moving averages, a class-balanced memory,
and replayed samples that weigh n_known / n_new. It is written to be read; a test holds it to the
library's weights in double precision. The library adds what a reader does not need: a Fisher whose
cost does not grow with the classes, a head that grows, checkpoints, CUDA graphs, every variant.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[Tensor, Tensor]


class Memory(Protocol):
    """What the method asks of a memory."""

    def draw(self, count: int) -> Pair | None:
        """At most so many samples and their units, none twice; None while there are none."""

    def add(self, x: Tensor, y: Tensor) -> None:
        """Offer samples and their units."""


class ClassBalanced:
    """Equal shares for all classes seen, a reservoir (a uniform sample) within each."""

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        self.capacity = capacity
        self.held: dict[int, list[Tensor]] = {}
        self.seen: dict[int, int] = {}
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> Pair | None:
        """Samples drawn uniformly from all that are held."""
        pairs = [(x, unit) for unit, held in self.held.items() for x in held]
        if not pairs:
            return None
        chosen = torch.randperm(len(pairs), generator=self.generator)[:count].tolist()
        return torch.stack([pairs[i][0] for i in chosen]), torch.tensor(
            [pairs[i][1] for i in chosen]
        )

    def add(self, x: Tensor, y: Tensor) -> None:
        """Offer samples; a new class takes its share from the others."""
        for sample, unit in zip(x, y.tolist(), strict=True):
            held = self.held.setdefault(unit, [])
            self.seen[unit] = self.seen.get(unit, 0) + 1
            share = self.capacity // len(self.held)
            for others in self.held.values():
                while len(others) > share:
                    others.pop(self._below(len(others)))
            if len(held) < share:
                held.append(sample)
            elif (place := self._below(self.seen[unit])) < share:
                held[place] = sample

    def _below(self, n: int) -> int:
        return int(torch.randint(n, (), generator=self.generator))


class KFAC:
    """(F̄ + τI)⁻¹ for each linear and convolutional layer, F̄ ≈ A ⊗ G averaged over time."""

    def __init__(self, model: nn.Module, head: nn.Linear, *, ema: float) -> None:
        kinds = (nn.Linear, nn.Conv2d)
        self.layers = [module for module in model.modules() if isinstance(module, kinds)]
        self.head, self.ema, self.classes = head, ema, 0
        self.passed: dict[nn.Module, Pair] = {}  # input and output of each layer, of the last pass
        self.averages: dict[nn.Module, Pair] = {}
        self.inverses: dict[nn.Module, Pair] = {}
        for layer in self.layers:
            layer.register_forward_hook(self._record)

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.passed[layer] = inputs[0].detach(), output
        return output.clone()  # what comes next may change it in place

    def update(self, logits: Tensor, weights: Tensor, active: Tensor, *, tau: float) -> None:
        """Take the curvature of the last forward pass into the averages, and invert them.

        The Fisher of one sample is Jᵀ(diag(p) − ppᵀ)J = Σ_k Jᵀu_k u_kᵀJ with u_k = √p_k (e_k − p):
        one backward pass for each class k. A sample's weight enters as its square root.
        """
        p = logits.detach().masked_fill(~active, float("-inf")).softmax(1)
        outputs = [self.passed[layer][1] for layer in self.layers]
        moments = [torch.zeros(())] * len(self.layers)
        for k in active.nonzero().flatten().tolist():
            e_k = functional.one_hot(torch.tensor(k), len(active)).to(p)
            column = (weights * p[:, k]).sqrt().unsqueeze(1) * (e_k - p)
            pulled = torch.autograd.grad(logits, outputs, column, retain_graph=True)
            found = [second_moment(output_rows(g)) for g in pulled]
            moments = [a + b for a, b in zip(moments, found, strict=True)]
        classes = int(active.sum())
        for layer, output, G in zip(self.layers, outputs, moments, strict=True):
            a, n = input_rows(layer, self.passed[layer][0]), len(logits)
            rows = len(output_rows(output))  # samples times locations
            estimate = second_moment(a) / n, G / rows
            old = self.averages.get(layer, estimate)  # the first estimate is taken whole
            grown = layer is self.head and classes != self.classes  # then its G begins anew
            rates = self.ema, 1.0 if grown else self.ema
            A, G = (o + r * (e - o) for o, e, r in zip(old, estimate, rates, strict=True))
            self.averages[layer] = A, G
            width = classes if layer is self.head else len(G)  # units that exist
            self.inverses[layer] = damped_inverses(A, G, tau=tau, width=width)
        self.classes = classes

    def precondition_(self) -> None:
        """Multiply the gradients with the inverses, in place; other layers keep theirs."""
        for layer, (inverse_a, inverse_g) in self.inverses.items():
            weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
            assert weight.grad is not None
            matrix = weight.grad.flatten(1)
            if bias is not None:
                matrix = torch.cat([matrix, bias.grad.unsqueeze(1)], dim=1)
            matrix = inverse_g @ matrix @ inverse_a
            if bias is not None:
                matrix, bias.grad = matrix[:, :-1], matrix[:, -1].contiguous()
            weight.grad = matrix.reshape(weight.shape)


def input_rows(layer: nn.Module, x: Tensor) -> Tensor:
    """What the weights are multiplied with: a row a sample and location, and 1 for the bias."""
    if isinstance(layer, nn.Conv2d):
        assert isinstance(layer.padding, tuple)
        sizes = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        x = functional.unfold(x, *sizes).mT.flatten(0, 1)
    return x if layer.bias is None else torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def output_rows(g: Tensor) -> Tensor:
    """A row a sample and location: ``(n, d)`` as it is, ``(n, d, h, w)`` turned."""
    return g if g.dim() == 2 else g.flatten(2).mT.flatten(0, 1)


def second_moment(rows: Tensor) -> Tensor:
    """Σ r rᵀ over the rows."""
    return rows.mT @ rows


def damped_inverses(A: Tensor, G: Tensor, *, tau: float, width: int) -> Pair:
    """(A + π√τ I)⁻¹ and (G + √τ/π I)⁻¹, with π = √((tr A / dim A) / (tr G / dim G))."""
    pi = float(((A.trace() / len(A)) / (G.trace() / width)).sqrt())
    root = tau**0.5
    damped = A + pi * root * torch.eye(len(A)).to(A), G + root / pi * torch.eye(len(G)).to(G)
    first, second = (torch.cholesky_inverse(torch.linalg.cholesky(m)) for m in damped)
    return first, second


class OCAR:
    """w ← w − α (F̄ + τI)⁻¹ ∇L̄ on new and replayed samples together.

    Args:
        model: Ends in ``head``, which has room for all classes; units of unseen ones are masked.
        head: The last linear layer.
        memory: What is replayed.
        lr: α, and τ at the start.
        tau_step: Δτ, what every gradient step adds to τ.
        ema: Weight of a new estimate of the curvature.
        n_new: Classes that are new at a time.
        passes: Gradient steps a stream batch.
        replay: Replayed samples a gradient step.
        curvature: Without it this is experience replay.
    """

    def __init__(
        self, model: nn.Module, head: nn.Linear, memory: Memory, *, lr: float, tau_step: float,
        ema: float, n_new: int, passes: int = 3, replay: int = 10, curvature: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.memory = model, memory
        self.lr, self.tau_step, self.n_new = lr, tau_step, n_new
        self.passes, self.replay, self.steps = passes, replay, 0
        self.kfac = KFAC(model, head, ema=ema) if curvature else None
        self.units: dict[int, int] = {}  # of each label, by appearance
        self.active = torch.zeros(head.out_features, dtype=torch.bool)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Take a few steps on a new batch and replayed samples, then remember the batch."""
        self.model.train()
        for label in y.tolist():
            self.units.setdefault(label, len(self.units))
        y = torch.tensor([self.units[label] for label in y.tolist()])
        self.active = torch.arange(len(self.active)) < len(self.units)
        for index in range(self.passes):
            replayed = self.memory.draw(self.replay)
            joint_x, joint_y, weights = x, y, torch.ones(len(x), dtype=x.dtype)
            if replayed is not None:
                joint_x, joint_y = torch.cat([x, replayed[0]]), torch.cat([y, replayed[1]])
                more = torch.full((len(replayed[1]),), len(self.units) / self.n_new, dtype=x.dtype)
                weights = torch.cat([weights, more])
            self._step(joint_x, joint_y, weights, renew=index == 0)
        self.memory.add(x, y)

    def _step(self, x: Tensor, y: Tensor, weights: Tensor, *, renew: bool) -> None:
        logits = self.model(x)
        if self.kfac is not None and renew:  # the first pass over a batch renews the curvature
            tau = self.lr + self.tau_step * self.steps
            self.kfac.update(logits, weights, self.active, tau=tau)
        self.model.zero_grad()
        functional.cross_entropy(torch.where(self.active, logits, -1000.0), y).backward()
        if self.kfac is not None:
            self.kfac.precondition_()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(self.lr * parameter.grad)
        self.steps += 1

    @torch.no_grad()
    def predict(self, x: Tensor) -> list[int]:
        """The likeliest label of each sample, at any moment."""
        self.model.eval()
        labels = list(self.units)
        return [labels[i] for i in self.model(x)[:, self.active].argmax(1).tolist()]


def main() -> None:
    """Five pairs of classes: how low the first fell, what is left of all. Rates: best of a few."""
    for name, lr, curvature in (("ER", 0.2, False), ("OCAR", 0.02, True)):
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        centres = torch.randn(10, 20, generator=generator)
        test_y = torch.arange(1000) % 10
        test_x = centres[test_y] + torch.randn(1000, 20, generator=generator)
        head = nn.Linear(64, 16)
        learner = OCAR(
            nn.Sequential(nn.Linear(20, 64), nn.ReLU(), head), head, ClassBalanced(50), lr=lr,
            tau_step=1e-7, ema=0.05, n_new=2, curvature=curvature,
        )  # fmt: skip
        lowest = 1.0
        for batch in range(100):
            y = 2 * (batch // 20) + torch.randint(2, (10,), generator=generator)
            learner.learn(centres[y] + torch.randn(10, 20, generator=generator), y)
            right = torch.tensor(learner.predict(test_x)) == test_y
            lowest = min(lowest, float(right[test_y < 2].float().mean()) if batch >= 20 else 1.0)
        print(f"{name:5} first pair at its worst {lowest:.1%}, all ten {right.float().mean():.1%}")


if __name__ == "__main__":
    main()
