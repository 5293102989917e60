"""K-FAC: a Kronecker-factored approximation of the Fisher, layer by layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.rows import RowRecorder
from ocar.accel.streams import Lanes, is_capturing
from ocar.accel.symmetric import side_by_side
from ocar.curvature.base import (
    Curvature,
    LikelihoodName,
    Schedule,
    at_clock,
    at_step,
    full_precision,
)
from ocar.curvature.blocks import NORM_LAYERS, Block, DampingKind, KroneckerBlock, make_block
from ocar.curvature.compiled_pool import make_pool
from ocar.curvature.factors import Sharing
from ocar.curvature.fisher import FisherRoot
from ocar.curvature.many_gradients import ManyGradients
from ocar.curvature.many_inputs import ManyInputs
from ocar.curvature.pool import FactorPool
from ocar.curvature.recorder import Capture, reject_shared_parameters, warn_uncovered
from ocar.errors import CheckpointError, ConfigError, ModelError, NumericalError

Weighting = Literal["gradients", "both"]

_ACTIVE = "active_outputs"


class KFAC(Curvature):
    """Preconditions gradients with a damped, averaged K-FAC approximation of the Fisher.

    Linear layers (with any leading dimensions) and 1-d and 2-d convolutions get
    Kronecker factors, embeddings a diagonal. Normalisation layers keep their plain
    gradient unless ``norm_layers`` is set. Frozen parameters get nothing. Layers
    of other kinds keep their gradient, and one warning names them.

    Example::

        kfac = KFAC(model, damping=1e-3, ema=0.1)
        with kfac.capture():
            logits = model(x)
        kfac.update(logits)
        loss(logits, y).backward()
        kfac.precondition_()
        optimizer.step()

    Args:
        model: Any module.
        damping: τ, a number or a function of the step.
        ema: Weight of a new estimate in the moving average, in (0, 1]. The first
            estimate is taken whole.
        fisher: ``"exact"``, ``"sketched(r)"``, ``"sampled(m)"``, ``"top(m)"`` or
            ``"empirical"``, see :mod:`ocar.curvature.fisher`.
        likelihood: ``"categorical"`` for logits, ``"gaussian"`` for regression.
        variance: σ² of a Gaussian likelihood.
        damping_kind: ``"factored"`` damps A and G each, balanced by π; ``"exact"``
            inverts A ⊗ G + τI in the eigenbases.
        weighting: Sample weights enter ``"gradients"`` (G alone, as OCAR's authors
            do) or ``"both"`` (A as Σ w aaᵀ / Σ w too).
        sharing: ``"expand"`` or ``"reduce"``, see :mod:`ocar.curvature.factors`.
        norm_layers: Give normalisation layers one small block for each unit.
        head: Name of the layer that makes the outputs. Its G starts again when the
            number of active outputs changes. By default the last linear layer.
        exclude: Names of layers that keep their plain gradient.
        track_norms: Keep the ratio of gradient norms in ``norm_ratio``.
        seed: Seed of the random roots.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        damping: Schedule,
        ema: Schedule,
        fisher: str | FisherRoot = "sketched(2)",
        likelihood: LikelihoodName = "categorical",
        variance: float = 1.0,
        damping_kind: DampingKind = "factored",
        weighting: Weighting = "gradients",
        sharing: Sharing = "expand",
        norm_layers: bool = False,
        head: str | None = None,
        exclude: Sequence[str] = (),
        track_norms: bool = False,
        seed: int = 0,
    ) -> None:
        for name, value, allowed in (
            ("damping_kind", damping_kind, ("factored", "exact")),
            ("weighting", weighting, ("gradients", "both")),
            ("sharing", sharing, ("expand", "reduce")),
        ):
            if value not in allowed:
                raise ConfigError(f"Invalid {name}={value!r}. Must be one of {allowed}.")
        super().__init__(
            model,
            damping=damping,
            ema=ema,
            fisher=fisher,
            likelihood=likelihood,
            variance=variance,
            track_norms=track_norms,
            seed=seed,
        )
        self.damping_kind: DampingKind = damping_kind
        self.weighting: Weighting = weighting
        self.sharing: Sharing = sharing
        self.norm_layers = norm_layers
        self.exclude = tuple(exclude)
        self.blocks = self._make_blocks()
        self.head = self._find_head(head)
        layers = {name: block.module for name, block in self.blocks.items()}
        self._capture = Capture(layers, model)
        self._rows = RowRecorder(layers)
        self._batched = True
        self._pool: FactorPool | None = None
        self._many_inputs, self._many_gradients = ManyInputs(), ManyGradients()
        self._lanes: Lanes | None = None  # those of the step that is being recorded
        self._begun: set[str] = set()  # layers whose A is being estimated on them
        self._finish: Callable[[], None] | None = None

    def __repr__(self) -> str:
        shown = (
            f"damping={self.damping!r}, ema={self.ema!r}, fisher={str(self.fisher)!r}, "
            f"likelihood={self.likelihood!r}, damping_kind={self.damping_kind!r}, "
            f"weighting={self.weighting!r}, sharing={self.sharing!r}, "
            f"norm_layers={self.norm_layers}, head={self.head!r}"
        )
        return f"KFAC({len(self.blocks)} layers of {type(self.model).__name__}, {shown})"

    def _make_blocks(self) -> dict[str, Block]:
        modules = dict(self.model.named_modules())
        unknown = [name for name in self.exclude if name not in modules]
        if unknown:
            raise ConfigError(f"Invalid exclude: the model has no layer {', '.join(unknown)}.")
        blocks: dict[str, Block] = {}
        uncovered: dict[str, nn.Module] = {}
        for name, module in modules.items():
            if name in self.exclude:
                continue
            block = make_block(
                name,
                module,
                sharing=self.sharing,
                kind=self.damping_kind,
                norm_layers=self.norm_layers,
            )
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if block is not None:
                blocks[name] = block
            elif own and not isinstance(module, NORM_LAYERS):
                uncovered[name] = module
        if not blocks:
            raise ModelError(
                f"{type(self.model).__name__} has no trainable Linear, Conv1d, Conv2d or Embedding "
                "layer to take the curvature of."
            )
        reject_shared_parameters({name: block.module for name, block in blocks.items()})
        warn_uncovered(uncovered)
        return blocks

    def _find_head(self, head: str | None) -> str | None:
        # Of all layers, also those without a block: a frozen head is still the head.
        linear = [n for n, m in self.model.named_modules() if isinstance(m, nn.Linear)]
        if head is None:
            return linear[-1] if linear else None
        if head not in dict(self.model.named_modules()):
            raise ConfigError(f"Invalid {head=}. Must be the name of a layer: {', '.join(linear)}.")
        return head

    def capture(self) -> Capture:
        """A context manager for the forward pass that :meth:`update` will use."""
        self._lanes = None
        self._begun.clear()
        if is_capturing(self._device) and self.weighting == "gradients":
            self._lanes = Lanes(self._device)
            self._capture.listener = self._begin_estimate
        return self._capture

    def _begin_estimate(self, name: str, x: Tensor) -> None:
        """Estimate the A of a convolution beside the forward pass that is being recorded."""
        block, pool = self._poolable().get(name), self._pool
        if block is None or pool is None or x.dim() != 4 or not pool.fits(self._poolable()):
            return
        assert self._lanes is not None
        x = self._by_sample(name, x, x.unsqueeze(0), len(x))[0]
        conv, done = self._convs().get(name), None
        if conv is not None:
            layer, by_pixel = conv
            with self._lanes.first(keep=x):
                done = self._many_inputs.add(name, x, layer, pool.scratch, by_pixel=by_pixel)
        if done is not None:
            self._begun |= done
            return
        place = pool.places(name)["A"]
        self._lanes.start(block.cost, partial(block.estimate_inputs, x, None, out=place), keep=x)
        self._begun.add(name)

    def _convs(self) -> dict[str, tuple[nn.Conv2d, bool]]:
        """Convolutions whose A can be made together, and whether kernels lie pixel by pixel."""
        return {
            name: (block.layer, block.by_pixel)
            for name, block in self._poolable().items()
            if isinstance(block.layer, nn.Conv2d) and not block.has_bias
            if block.groups == 1 and self.sharing == "expand"
        }

    def follow(self) -> AbstractContextManager[None]:
        """For the forward pass of the loss, inside or outside of :meth:`capture`."""
        return self._rows.recording()

    @full_precision
    def update(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
        accepted: Tensor | None = None,
    ) -> None:
        """Take the curvature of a batch into the moving average.

        Nothing changes when the batch has no finite curvature.

        Args:
            outputs: What the model returned inside :meth:`capture`, ``(n, outputs)``,
                with its graph: call this before the graph is freed.
            weights: One non-negative weight a sample, ``(n,)``; 1 by default.
            targets: The labels, needed by ``fisher="empirical"`` alone.
            active: Which outputs exist, ``(outputs,)`` of bool; all by default. When
                their number changes, the G of the head starts again.
            accepted: A scalar of bool on the device; where it is False the averages stay as they
                are. In a captured step they do too if the curvature is not finite, and
                :meth:`check` says nothing of it.

        Raises:
            ModelError: No forward pass was captured, or the outputs are not its.
            NumericalError: The batch gives a curvature that is not finite.
        """
        if not self._capture.inputs:
            raise ModelError("No forward pass was captured. Call the model inside capture().")
        input_weights = weights if self.weighting == "both" else None
        if is_capturing(self._device):
            self._update_side_by_side(outputs, weights, targets, active, accepted)
            return
        if accepted is not None and not accepted:
            self._columns(outputs, weights, targets, active)  # draws what a captured step would
            self._capture.clear()
            return
        draws = self.generator.get_state()
        layers = self._layers(outputs, weights, targets, active)
        if not layers:
            raise ModelError(
                "The outputs do not come from the captured forward pass. Give update() what the "
                "model returned inside capture()."
            )
        with side_by_side():
            estimates = {n: self.blocks[n].estimate(*xg, input_weights) for n, xg in layers.items()}
        try:
            _reject_infinite(estimates)
        except NumericalError:
            self.generator.set_state(draws)
            raise
        if not any(block.averages for block in self.blocks.values()):
            self._warn_unused(estimates)
        ema = at_step(self.ema, self.step)
        for name, estimate in estimates.items():
            self._average(name, estimate, ema, active)
        if self.weighting == "gradients":
            self._many_inputs.see(self._capture.inputs, self._convs())
        self._many_gradients.see(self._gradients(layers))
        self._capture.clear()
        self._stale = True

    def _layers(
        self, outputs: Tensor, weights: Tensor | None, targets: Tensor | None, active: Tensor | None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Input and output gradients of every layer that the outputs depend on."""
        columns = self._columns(outputs, weights, targets, active)
        gradients = self._pull_back(outputs, columns)
        inputs, samples = self._capture.inputs, outputs.shape[0]
        return {n: self._by_sample(n, inputs[n], g, samples) for n, g in gradients.items()}

    def _average(
        self,
        name: str,
        estimate: Mapping[str, Tensor],
        ema: float | Tensor,
        active: Tensor | None,
    ) -> None:
        block = self.blocks[name]
        rates: dict[str, float | Tensor] = dict.fromkeys(estimate, ema)
        if "G" in estimate and name == self.head and isinstance(block, KroneckerBlock):
            rates["G"] = self._head_rate(block, active, ema)
        block.average(estimate, rates)

    def _update_side_by_side(
        self,
        outputs: Tensor,
        weights: Tensor | None,
        targets: Tensor | None,
        active: Tensor | None,
        accepted: Tensor | None,
    ) -> None:
        """As :meth:`update`, then the inverse, on streams of a graph that is being captured.

        What is known of the inputs is estimated beside the backward pass of the root, and the rest
        beside that of the loss: nothing is waited for before :meth:`precondition_`. What is
        not finite is noted for :meth:`check`.
        """
        assert self.clock is not None
        ema, damping = at_clock(self.ema, self.clock), at_clock(self.damping, self.clock)
        input_weights = weights if self.weighting == "both" else None
        pool, pooled, samples = self._pool, self._poolable(), outputs.shape[0]
        if pooled and (pool is None or not pool.fits(pooled)):
            raise NotImplementedError("The factors have other shapes than those inverted last.")
        lanes = self._lanes or Lanes(self._device)
        self._many_inputs.clear()
        inputs = {
            name: self._by_sample(name, x, x.unsqueeze(0), samples)[0]
            for name, x in self._capture.inputs.items()
            if name in pooled and name not in self._begun
        }
        captured = pooled.keys() & self._capture.inputs.keys()
        places = {} if pool is None else {name: pool.places(name) for name in captured}
        estimates = [
            (x.numel(), partial(pooled[n].estimate_inputs, x, input_weights, out=places[n]["A"]))
            for n, x in inputs.items()
        ]
        lanes.run(estimates, keep=(inputs, input_weights))
        layers = self._layers(outputs, weights, targets, active)
        if pooled.keys() - layers.keys():
            raise NotImplementedError("The layers in use have changed.")
        done: set[str] = set()
        jobs: list[tuple[int, Callable[[], object]]] = []
        if pool is not None:
            done, together = self._many_gradients.estimate(self._gradients(layers), pool.scratch)
            jobs.append((sum(layers[name][1].numel() for name in done), together))
        jobs += [
            (g.numel(), partial(pooled[n].estimate_gradients, g, out=places[n]["G"]))
            for n, (_, g) in layers.items()
            if n in pooled and n not in done
        ]
        lanes.run(jobs, keep=(layers, active, ema, damping))
        infinite: list[Tensor] = []
        failed: list[Tensor] = []
        reports: list[Tensor] = []

        def average() -> None:
            assert pool is not None
            head = pooled.get(self.head or "")
            taken = pool.accept(accepted)
            head_rate = ema if head is None else self._head_rate(head, active, ema, taken)
            infinite.insert(0, pool.mix(ema, head_rate, damping, accepted=taken))

        def take(name: str, x: Tensor, g: Tensor) -> None:
            block = self.blocks[name]
            estimate = block.estimate(x, g, input_weights)
            finite, rate = _total(estimate).isfinite(), ema
            if accepted is not None:
                estimate = {key: value.nan_to_num() for key, value in estimate.items()}
                rate = (accepted & finite).double() * ema
                finite = torch.ones_like(finite)
            block.average(estimate, dict.fromkeys(estimate, rate))
            infinite.append((~finite).long())
            failed.append(block.renew_inverse_(damping).long())

        jobs = [
            (block.cost, partial(take, name, *layers[name]))
            for name, block in self.blocks.items()
            if name in layers and name not in pooled
        ]
        if pool is not None:
            lanes.run_between(average)
            jobs += [(cost, partial(_report, job, reports)) for cost, job in pool.inversions()]
        lanes.run(jobs)

        def finish() -> None:
            lanes.join()
            if pool is not None:
                failed.append(pool.renew(reports, infinite[0]))
            self._trouble.add_(
                torch.stack([torch.stack(infinite).sum(), torch.stack(failed).sum()])
            )

        self._capture.clear()
        self._finish = finish

    def _gradients(
        self, layers: Mapping[str, tuple[Tensor, Tensor]]
    ) -> dict[str, tuple[Tensor, bool]]:
        """The gradients of layers whose G can be made together, and whether they are of images."""
        return {
            name: (layers[name][1], isinstance(block.layer, nn.Conv2d))
            for name, block in self._poolable().items()
            if name in layers and not isinstance(block.layer, nn.Conv1d)
            if block.groups == 1 and self.sharing == "expand"
        }

    def _poolable(self) -> dict[str, KroneckerBlock]:
        """The blocks whose factors can lie together."""
        if self.damping_kind == "exact":
            return {}
        return {
            name: block
            for name, block in self.blocks.items()
            if isinstance(block, KroneckerBlock) and block.averages
        }

    def _by_sample(self, name: str, x: Tensor, g: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Input and gradients of a layer with the samples first, in single precision at least.

        A linear layer may see the locations of a sample as rows of a longer batch;
        they are given back to it.
        """
        wide = torch.promote_types(g.dtype, torch.float32)
        x, g = x.to(wide) if x.is_floating_point() else x, g.to(wide)
        if x.shape[0] == samples:
            return x, g
        if isinstance(self.blocks[name].module, nn.Linear) and x.shape[0] % samples == 0:
            return x.unflatten(0, (samples, -1)), g.unflatten(1, (samples, -1))
        raise ModelError(
            f"Layer {name!r} saw {x.shape[0]} rows for {samples} samples. Its curvature needs the "
            f"samples in the first dimension; leave it out with exclude=[{name!r}]."
        )

    def _head_rate(
        self,
        block: KroneckerBlock,
        active: Tensor | None,
        ema: float | Tensor,
        accepted: Tensor | None = None,
    ) -> Tensor | float:
        """The weight of a new G of the head: 1 when the number of classes has changed.

        A value, not a branch, so that no device has to be waited for.
        """
        known = block.active_outputs
        count = None if active is None else active.sum()
        if known is None and count is None:
            return ema
        every = block.layer.weight.shape[0]
        same = (every if known is None else known) == (every if count is None else count)
        assert isinstance(same, Tensor)
        rate = torch.where(same, ema, torch.ones((), dtype=torch.float64, device=self._device))
        if known is None or count is None:
            block.active_outputs = count
        else:
            taken = count if accepted is None else torch.where(accepted, count, known)
            known.copy_(taken)  # in place, for a captured graph to find it there
        return rate

    def _pull_back(self, outputs: Tensor, columns: Tensor) -> dict[str, Tensor]:
        if self._batched:
            try:
                return self._capture.pull_back(outputs, columns)
            except RuntimeError as error:
                # Where one after another fails too, batching was not to blame.
                gradients = self._capture.pull_back(outputs, columns, batched=False)
                warnings.warn(
                    "The backward pass of this model cannot be batched; the columns of the "
                    f"Fisher are computed one after another, which is slower: {error}",
                    stacklevel=4,
                )
                self._batched = False
                return gradients
        return self._capture.pull_back(outputs, columns, batched=False)

    def _warn_unused(self, used: Collection[str]) -> None:
        unused = {n: b.module for n, b in self.blocks.items() if n not in used}
        warn_uncovered(unused, stacklevel=5)

    def _invert(self, damping: float) -> None:
        for block in self.blocks.values():
            if block.averages:
                block.invert(damping)
        pooled = self._poolable() if self._device.type == "cuda" else {}
        if pooled and (self._pool is None or not self._pool.fits(pooled)):
            self._pool = make_pool(pooled, head=self.head)
            self._many_inputs.forget()
            self._many_gradients.forget()
        if self._pool is not None:
            self._prepare_together(self._pool)

    def _prepare_together(self, pool: FactorPool) -> None:
        """Make ready to record what the last update has seen."""
        self._many_inputs.prepare(pool.starts("A"), pool.scratch)
        self._many_gradients.prepare(pool.starts("G"), pool.scratch)

    def _rewrite_gradients(self) -> None:
        if is_capturing(self._device):
            if self._finish is not None:
                self._finish()
                self._finish = None
            together = self._pool is not None and self._pool.precondition_()
            done = self._poolable() if together else {}
            left = [block for name, block in self.blocks.items() if name not in done]
            lanes = Lanes(self._device)
            lanes.run((block.cost, block.precondition_) for block in left)
            lanes.join()
            return
        for name, block in self.blocks.items():
            block.precondition_(self._rows.rows(name))

    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped curvature, ascending, for each layer."""
        damping = at_step(self.damping, self.step)
        return {n: b.eigenvalues(damping) for n, b in self.blocks.items() if b.averages}

    def memory_usage(self) -> int:
        """Bytes of all factors and inverses."""
        tensors = [t for block in self.blocks.values() for t in block.tensors()]
        return sum(t.element_size() * t.numel() for t in tensors)

    def _averages(self) -> dict[str, Tensor]:
        state = {
            f"{name}.{key}": value
            for name, block in self.blocks.items()
            for key, value in block.saved().items()
        }
        head = self.blocks.get(self.head or "")
        if isinstance(head, KroneckerBlock) and head.active_outputs is not None:
            state[_ACTIVE] = head.active_outputs
            known, units = head.averages["G"], head.layer.weight.shape[0]
            missing = units - known.shape[-1]  # the head has grown since, by units without class
            state[f"{self.head}.G"] = functional.pad(known, (0, missing, 0, missing))
        return state

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        averages = dict(averages)
        active = averages.pop(_ACTIVE, None)
        by_layer: dict[str, dict[str, Tensor]] = {name: {} for name in self.blocks}
        for full, value in averages.items():
            name, _, key = full.rpartition(".")
            if name not in by_layer:
                raise CheckpointError(f"The checkpoint has curvature of {name!r}, no layer here.")
            by_layer[name][key] = value
        for name, block in self.blocks.items():
            block.check(by_layer[name])
        for name, block in self.blocks.items():
            block.load(by_layer[name])
            if isinstance(block, KroneckerBlock) and name == self.head:
                block.active_outputs = (
                    None if active is None else active.to(self._device, copy=True)
                )


def _report(job: Callable[[], Tensor], reports: list[Tensor]) -> None:
    reports.append(job())


def _total(estimate: Mapping[str, Tensor]) -> Tensor:
    """A number that is finite only if all statistics of a layer are.

    A factor has sums of squares on its diagonal, so a number that is not finite
    anywhere shows there.
    """
    parts = [
        (value if key == "F" else value.diagonal(dim1=-2, dim2=-1)).sum()
        for key, value in estimate.items()
    ]
    return torch.stack(parts).sum()


def _reject_infinite(estimates: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse statistics with NaN or Inf, at the cost of one look at the diagonals."""
    totals = {name: _total(estimate) for name, estimate in estimates.items()}
    if not bool(torch.stack(list(totals.values())).sum().isfinite()):
        names = sorted(name for name, total in totals.items() if not bool(total.isfinite()))
        raise NumericalError(
            f"The curvature of this batch is not finite in layer(s) {', '.join(names) or 'sum'}. "
            "Nothing was changed. Check the inputs for extreme values."
        )
