"""The paper's convex stream: one linear regression after another.

Its appendix "Qualitative Experiment" describes ten tasks of 1000 samples with ten inputs and one
output. Each task has its own multivariate normal for the inputs and its own true weights. The paper
leaves the distributions open. Here inputs and targets are of the order of one:

    μ ~ N(0, I),   Σ = A Aᵀ / d + 0.1 I with A_ij ~ N(0, 1),   w ~ N(0, I / d),
    x ~ N(μ, Σ),   y = wᵀx + ε,   ε ~ N(0, noise²).

As in the paper, runs with different seeds see the same data in a different order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ocar.config import require, require_sizes
from ocar.rng import make_generator
from ocar.streams.arrays import ArrayStream, TaskArrays


class ConvexStream(ArrayStream):
    """Linear-regression tasks, without validation or test data.

    Args:
        tasks: Number of tasks.
        features: Inputs of the regression.
        samples: Samples of each task.
        noise: Standard deviation of the noise ε.
        data_seed: Seed of the data; ``seed`` is that of the order of samples.
        device: Where to keep the data and give the batches.

    The other arguments are those of :class:`~ocar.streams.arrays.ArrayStream`.

    Attributes:
        weights: The true weights of each task, ``(tasks, features)``.
    """

    def __init__(
        self,
        *,
        tasks: int = 10,
        features: int = 10,
        samples: int = 1000,
        noise: float = 0.1,
        batch_size: int = 10,
        seed: int = 0,
        data_seed: int = 0,
        iid: bool = False,
        blurry: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        require_sizes(tasks=tasks, features=features, samples=samples)
        require("noise", noise, noise >= 0, "at least 0")
        made = [
            _make_task(make_generator(data_seed, f"convex/{task}"), features, samples, noise)
            for task in range(tasks)
        ]
        self.weights = torch.stack([weight for _, _, weight in made]).to(device)
        data = [TaskArrays(name="convex", x_train=x, y_train=y).to(device) for x, y, _ in made]
        super().__init__(
            data, batch_size=batch_size, validation=0.0, seed=seed, iid=iid, blurry=blurry
        )


def _make_task(
    generator: torch.Generator, features: int, samples: int, noise: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs ``(samples, features)``, targets ``(samples, 1)``, true weights ``(features,)``."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mean, mixing = normal(features), normal(features, features)
    covariance = mixing @ mixing.T / features + 0.1 * torch.eye(features, dtype=torch.float64)
    weight = normal(features) / math.sqrt(features)
    x = mean + normal(samples, features) @ torch.linalg.cholesky(covariance).T
    y = x @ weight[:, None] + noise * normal(samples, 1)
    return x.float(), y.float(), weight.float()
