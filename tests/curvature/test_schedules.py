"""Moving averages, and hyper-parameters that are functions of the step."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import average
from nets import mlp, observe, set_gradients
from tolerances import EXACT
from torch.testing import assert_close

from ocar.curvature import KFAC, DenseFisher
from ocar.curvature.schedule import at_step


def test_a_number_is_a_schedule():
    assert at_step(0.5, 7) == 0.5
    assert at_step(lambda step: step + 0.5, 7) == 7.5


@pytest.mark.parametrize("kind", [KFAC, DenseFisher])
def test_schedules_are_asked_at_the_number_of_gradient_steps(kind):
    asked: dict[str, list[int]] = {"damping": [], "ema": []}

    def recorder(name: str):
        def value(step: int) -> float:
            asked[name].append(step)
            return 0.5

        return value

    model, x = mlp(), torch.randn(4, 5)
    curvature = kind(model, damping=recorder("damping"), ema=recorder("ema"))
    for steps in asked.values():
        steps.clear()  # the values at construction are checked
    assert curvature.step == 0
    for updates in (1, 0, 2, 1):
        for _ in range(updates):
            observe(curvature, x)
        set_gradients(model)
        curvature.precondition_()
    assert curvature.step == 4
    # Once an update: the second step uses the inverse of the first again.
    assert asked["damping"] == asked["ema"] == [0, 2, 2, 3]


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_averages_and_damping_follow_their_schedules(kind):
    model = mlp()
    batches = [torch.randn(4, 5) for _ in range(4)]
    ema, damping = [0.9, 0.4, 0.3, 0.2], [0.1, 0.02, 0.3, 0.04]
    kfac = KFAC(
        model,
        damping=lambda step: damping[step],
        ema=lambda step: ema[step],
        fisher="exact",
        damping_kind=kind,
    )
    averages: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for step, x in enumerate(batches):
        observe(kfac, x)
        for name, new in reference.kronecker_factors(model, x, ["0", "2"]).items():
            if step == 0:
                averages[name] = new  # whole
            else:
                old, rate = averages[name], ema[step]
                averages[name] = tuple(
                    (1 - rate) * o + rate * n for o, n in zip(old, new, strict=True)
                )
        set_gradients(model, seed=step)
        expected = {
            name: reference.preconditioned(
                model.get_submodule(name), averages[name], damping[step], kind=kind
            )
            for name in averages
        }
        kfac.precondition_()
        for name, grad in expected.items():
            layer = model.get_submodule(name)
            own = reference.as_matrix(layer, layer.weight.grad, layer.bias.grad)
            assert_close(own, grad, **EXACT)


def test_an_inverse_is_kept_until_the_next_update():
    """τ moves on, but without new curvature the old inverse is used."""
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=lambda step: 0.1 * (step + 1), ema=0.5, fisher="exact")
    observe(kfac, x)
    results = []
    for _ in range(2):
        set_gradients(model)
        kfac.precondition_()
        results.append([p.grad.clone() for p in model.parameters()])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
    observe(kfac, x)  # the same batch: the averages stay, the damping does not
    set_gradients(model)
    kfac.precondition_()
    assert not torch.allclose(model[0].weight.grad, results[0][0])


def test_an_average_of_an_unchanging_batch_does_not_move():
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.1, ema=0.3, fisher="exact")
    for _ in range(3):
        observe(kfac, x)
    for name, (a, g) in reference.kronecker_factors(model, x, ["0", "2"]).items():
        assert_close(average(kfac, name, "A"), a, **EXACT)
        assert_close(average(kfac, name, "G"), g, **EXACT)
