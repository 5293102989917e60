"""Saving and restoring a curvature: it goes on to the bit, and refuses what does not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from nets import batch_norm_net, mlp, observe, set_gradients
from tolerances import BITWISE
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import EKFAC, FOOF, KFAC, Curvature, DenseFisher
from ocar.errors import CheckpointError

MAKERS: dict[str, Callable[[nn.Module], Curvature]] = {
    "kfac": lambda m: KFAC(m, damping=lambda s: 0.1 / (s + 1), ema=0.3, norm_layers=True),
    "kfac-exact-damping": lambda m: KFAC(
        m, damping=lambda s: 0.1 / (s + 1), ema=0.3, damping_kind="exact", fisher="top(1)"
    ),
    "ekfac": lambda m: EKFAC(
        m, damping=lambda s: 0.1 / (s + 1), ema=0.3, basis_every=2, norm_layers=True
    ),
    "foof": lambda m: FOOF(m, damping=lambda s: 0.1 / (s + 1), ema=0.3),
    "dense": lambda m: DenseFisher(m, damping=lambda s: 0.1 / (s + 1), ema=0.3, fisher="sampled"),
}


def active(count: int) -> Tensor:
    return torch.arange(3) < count


def steps(curvature: Curvature, start: int, stop: int) -> list[Tensor]:
    """Gradient steps, an update in every second one, a class more at step 4."""
    model, results = curvature.model, []
    for step in range(start, stop):
        if step % 2 == 0:
            x = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(step))
            observe(curvature, x, active=active(2 if step < 4 else 3))
        set_gradients(model, seed=step)
        curvature.precondition_()
        results += [p.grad.clone() for p in model.parameters()]
    return results


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_restored_curvature_goes_on_to_the_bit(maker, stop):
    """Saved after any step, also before the first and across a renewal of E-KFAC's basis."""
    model = batch_norm_net()
    original = MAKERS[maker](model)
    steps(original, 0, stop)
    saved = copy.deepcopy(original.state_dict())
    restored = MAKERS[maker](copy.deepcopy(model))
    restored.load_state_dict(saved)
    assert restored.step == stop
    assert same(restored.state_dict(), saved)
    expected = steps(original, stop, 7)
    for one, other in zip(steps(restored, stop, 7), expected, strict=True):
        assert_close(one, other, **BITWISE)


@pytest.mark.parametrize("stop", [0, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_copy_with_its_model_goes_on_to_the_bit(maker, stop):
    original = MAKERS[maker](batch_norm_net())
    steps(original, 0, stop)
    copied = copy.deepcopy(original)
    before = {name: value.clone() for name, value in original.state_dict().items()}
    found = steps(copied, stop, 6)
    assert same(original.state_dict(), before)
    assert_close(found, steps(original, stop, 6), **BITWISE)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_curvature_saved_after_an_update_inverts_when_it_is_restored(maker):
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    original = MAKERS[maker](model)
    steps(original, 0, 3)
    observe(original, x, active=active(2))
    restored = MAKERS[maker](copy.deepcopy(model))
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    results = []
    for curvature in (original, restored):
        set_gradients(curvature.model)
        curvature.precondition_()
        results.append([p.grad for p in curvature.model.parameters()])
    for one, other in zip(*results, strict=True):
        assert_close(one, other, **BITWISE)


class Skipping(nn.Module):
    """A network with a layer that some batches skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.skips = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        outputs: Tensor = self.head(x if self.skips else x + self.middle(x))
        return outputs


@pytest.mark.parametrize("maker", [m for m in MAKERS if m != "dense"])
def test_a_layer_that_a_batch_skips_is_damped_as_the_others(maker):
    """The inverse depends on the state alone, also of a layer without an estimate of the batch."""
    model, x = Skipping(), torch.randn(6, 5)
    original = MAKERS[maker](model)
    observe(original, x)
    set_gradients(model)
    original.precondition_()
    model.skips = True
    observe(original, x)
    restored = MAKERS[maker](copy.deepcopy(model))
    restored.load_state_dict(original.state_dict())
    for curvature in (original, restored):
        set_gradients(curvature.model)
        curvature.precondition_()
    for one, other in zip(restored.model.parameters(), model.parameters(), strict=True):
        assert_close(one.grad, other.grad, **BITWISE)


@pytest.mark.parametrize("maker", MAKERS)
def test_loading_neither_edits_nor_keeps_its_argument(maker):
    model = batch_norm_net()
    original = MAKERS[maker](model)
    steps(original, 0, 3)
    saved = copy.deepcopy(original.state_dict())
    untouched = copy.deepcopy(saved)
    restored = MAKERS[maker](copy.deepcopy(model))
    restored.load_state_dict(saved)
    steps(restored, 3, 7)
    assert same(saved, untouched)
    again = MAKERS[maker](copy.deepcopy(model))
    again.load_state_dict(saved)
    for value in saved.values():
        value.zero_()
    assert same(again.state_dict(), untouched)


def test_the_generator_is_part_of_the_state():
    kfac = KFAC(mlp(), damping=0.1, ema=0.3)
    before = kfac.state_dict()["generator"].clone()
    observe(kfac, torch.randn(4, 5))
    assert not torch.equal(before, kfac.state_dict()["generator"])
    assert not torch.equal(
        before, KFAC(mlp(), damping=0.1, ema=0.3, seed=1).state_dict()["generator"]
    )
    assert torch.equal(before, KFAC(mlp(), damping=0.1, ema=0.3, seed=0).state_dict()["generator"])


def test_the_global_generator_is_left_alone():
    kfac = KFAC(mlp(), damping=0.1, ema=0.3, fisher="top(1)")
    x = torch.randn(4, 5)
    before = torch.get_rng_state()
    observe(kfac, x)
    assert torch.equal(before, torch.get_rng_state())


# --- what is refused ----------------------------------------------------------------------------


def without(key: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda state: state.pop(key)


def with_value(key: str, value: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda state: state.update({key: value})


REFUSED = {
    "missing step": (without("step"), "Curvature state: missing ['step'], unknown []."),
    "unknown": (
        with_value("extra", torch.zeros(1)),
        "Curvature state: missing [], unknown ['extra'].",
    ),
    "missing statistic": (
        without("averages.2.G"),
        "The checkpoint has other curvature: ['2.G']. Here: {'2.G': (1, 3, 3)}.",
    ),
    "unknown statistic": (
        with_value("averages.2.F", torch.zeros(1)),
        "The checkpoint has other curvature: {'2.F': (1,)}. Here: {'2.F': None}.",
    ),
    "unknown layer": (
        with_value("averages.7.A", torch.zeros(1)),
        "The checkpoint has curvature of '7', no layer here.",
    ),
    "shape of A": (
        with_value("averages.2.A", torch.zeros(1, 2, 2)),
        "The checkpoint has other curvature: {'2.A': (1, 2, 2)}. Here: {'2.A': (1, 5, 5)}.",
    ),
    "shape of G": (
        with_value("averages.2.G", torch.zeros(1, 2, 2)),
        "The checkpoint has other curvature: {'2.G': (1, 2, 2)}. Here: {'2.G': (1, 3, 3)}.",
    ),
    "missing count": (
        without("averages.2.G.count"),
        "The checkpoint has other curvature: ['2.G.count']. Here: {'2.G.count': ()}.",
    ),
    "shape of a count": (
        with_value("averages.2.G.count", torch.zeros(2)),
        "The checkpoint has other curvature: {'2.G.count': (2,)}. Here: {'2.G.count': ()}.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_states_that_do_not_fit_are_refused_and_nothing_changes(case):
    spoil, text = REFUSED[case]
    other = KFAC(mlp(), damping=0.1, ema=0.3)
    observe(other, torch.randn(4, 5))
    state = copy.deepcopy(other.state_dict())
    spoil(state)
    kfac = KFAC(mlp(), damping=0.1, ema=0.3, seed=1)
    observe(kfac, torch.randn(4, 5))
    before = copy.deepcopy(kfac.state_dict())
    with pytest.raises(CheckpointError) as caught:
        kfac.load_state_dict(state)
    assert str(caught.value) == text
    assert same(kfac.state_dict(), before)


@pytest.mark.parametrize("kind", ["norm", "embedding"])
def test_statistics_of_other_blocks_are_checked_too(kind):
    """Nothing is loaded if one of them does not fit."""
    first = nn.Embedding(4, 4) if kind == "embedding" else nn.LayerNorm(4)
    model = nn.Sequential(first, nn.Linear(4, 3))
    x = torch.randint(4, (3,)) if kind == "embedding" else torch.randn(3, 4)
    kfac = KFAC(model, damping=0.1, ema=0.3, norm_layers=True)
    observe(kfac, x)
    state = copy.deepcopy(kfac.state_dict())
    kfac.load_state_dict(state)
    before = copy.deepcopy(state)
    for value in state.values():
        value.zero_()
    state["averages.0.F"] = torch.zeros(9)
    needed = "(4, 4)" if kind == "embedding" else "(4, 2, 2)"
    with pytest.raises(CheckpointError) as caught:
        kfac.load_state_dict(state)
    assert str(caught.value) == (
        f"The checkpoint has other curvature: {{'0.F': (9,)}}. Here: {{'0.F': {needed}}}."
    )
    assert same(kfac.state_dict(), before)


def test_a_full_fisher_of_another_size_is_refused():
    dense = DenseFisher(mlp(), damping=0.1, ema=0.3)
    observe(dense, torch.randn(4, 5))
    state = copy.deepcopy(dense.state_dict())
    other = DenseFisher(mlp((5, 3, 3)), damping=0.1, ema=0.3)
    observe(other, torch.randn(4, 5))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(CheckpointError) as caught:
        other.load_state_dict(state)
    assert str(caught.value) == (
        "The full Fisher needs one matrix of size (30, 30); "
        "the checkpoint has {'model': (39, 39), 'count': ()}."
    )
    assert same(other.state_dict(), before)


# --- what a roll back needs ---------------------------------------------------------------------


@pytest.mark.parametrize("maker", MAKERS)
def test_the_tensors_of_a_curvature_undo_an_update(maker):
    """What the guard copies: averages and counts, also where classes came with the batch."""
    results = []
    for rolled_back in (False, True):
        torch.manual_seed(1)
        curvature = MAKERS[maker](batch_norm_net())
        steps(curvature, 0, 3)
        x = torch.randn(4, 2, 5, 5)
        if rolled_back:
            copies = [tensor.clone() for tensor in curvature.tensors()]
            draws = curvature.generator.get_state()
            with curvature.record():
                outputs = curvature.model(2 * x)
            curvature.estimate(outputs, active=active(1))
            curvature.renew(0.1, 0.3)
            changed = [not torch.equal(*p) for p in zip(curvature.tensors(), copies, strict=True)]
            assert all(changed) or maker == "foof"  # it does not know the head
            for tensor, copy_ in zip(curvature.tensors(), copies, strict=True):
                tensor.copy_(copy_)
            curvature.generator.set_state(draws)
        observe(curvature, x, active=active(2))
        set_gradients(curvature.model)
        curvature.precondition_()
        results.append([p.grad.clone() for p in curvature.model.parameters()])
    assert_close(*results, **BITWISE)
