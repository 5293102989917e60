"""The plane of the loss landscape by its theorem, the surfaces by single losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import ocar
import ocar_lab
from ocar.errors import ConfigError, InputError
from ocar_lab.paper.figures import landscape
from ocar_lab.paper.figures.landscape import LandscapeFigure
from ocar_lab.paper.figures.plane import plane_through
from ocar_lab.paper.figures.setup import Setup

DIGITS = LandscapeFigure(batches=4, samples=30, resolution=5, every=2, dense=1)


def quiet(done: int, total: int) -> None:
    pass


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_basis_is_orthonormal_and_the_three_points_lie_in_the_plane() -> None:
    generator = torch.Generator().manual_seed(0)
    w0, w1, w5 = torch.randn(3, 1000, generator=generator, dtype=torch.float64)
    plane = plane_through(w0, w1, 7 * w5)
    basis = torch.stack([plane.u, plane.v])
    torch.testing.assert_close(basis @ basis.T, torch.eye(2, dtype=torch.float64))
    for point in (w0, w1, 7 * w5):
        again = plane.points(plane.coordinates(point))
        torch.testing.assert_close(again, point, rtol=0, atol=1e-12 * 300)
        assert float(plane.distances(point)) < 1e-12 * 300
    torch.testing.assert_close(plane.coordinates(w0), torch.zeros(2, dtype=torch.float64))
    assert float(plane.coordinates(w1)[0]) == pytest.approx(float((w1 - w0).norm()))
    assert float(plane.coordinates(w1)[1]) == pytest.approx(0, abs=1e-12)


def test_the_formula_as_printed_is_not_orthogonal() -> None:
    u = torch.tensor([1.0, 0.0], dtype=torch.float64)
    v = torch.tensor([3.0, 4.0], dtype=torch.float64)
    printed = v - (u @ v) / (u.norm() * v.norm()) * u
    assert abs(float(printed @ u)) > 1
    plane = plane_through(torch.zeros(2), u, v)
    assert float(plane.v @ u) == pytest.approx(0)


def test_a_nearest_point_is_nearest() -> None:
    generator = torch.Generator().manual_seed(1)
    plane = plane_through(*torch.randn(3, 6, generator=generator, dtype=torch.float64))
    point = torch.randn(6, generator=generator, dtype=torch.float64)
    solved = torch.linalg.lstsq(
        torch.stack([plane.u, plane.v], dim=1), (point - plane.origin)[:, None]
    ).solution[:, 0]
    torch.testing.assert_close(plane.coordinates(point), solved)


def test_three_points_on_a_line_have_no_plane() -> None:
    with pytest.raises(InputError, match="on one line"):
        plane_through(torch.zeros(3), torch.ones(3), 2 * torch.ones(3))


@pytest.fixture(scope="module")
def path() -> landscape.Trajectory:
    return DIGITS.make("ocar", quiet)


def stored_weights() -> tuple[list[torch.Tensor], ocar.Learner]:
    """The same run by hand: the weights at the start and at the end of each task."""
    config = DIGITS.config("ocar")
    learner = DIGITS.learner(config)
    vector = nn.utils.parameters_to_vector
    kept = [vector(learner.model.parameters()).detach().clone()]
    for batch in DIGITS.stream(config):
        learner.learn(batch.x, batch.y)
        if batch.last:
            kept.append(vector(learner.model.parameters()).detach().clone())
    return kept, learner


def test_surfaces_at_the_three_points_are_the_losses_of_the_stored_weights(
    path: landscape.Trajectory,
) -> None:
    weights, learner = stored_weights()
    stream = DIGITS.stream(DIGITS.config("ocar"))
    plane = plane_through(weights[0], weights[1], weights[-1])
    model, unit = learner.model, {label: i for i, label in enumerate(learner.classes)}
    places = (0, path.boundaries[0], path.boundaries[-1])
    for at, known in zip(places, path.losses, strict=True):
        xy = torch.tensor([path.x[at], path.y[at]])
        nn.utils.vector_to_parameters(plane.points(xy).float(), model.parameters())
        for task, loss in enumerate(known):
            x, y = stream.test(task)
            chosen = torch.linspace(0, len(y) - 1, 30).round().long()
            units = torch.tensor([unit[label] for label in y[chosen].tolist()])
            normalize = learner.settings.normalize
            assert normalize is not None
            with torch.no_grad():
                logits = model(normalize(x[chosen]).float())[:, :10]
            found = float(nn.functional.cross_entropy(logits, units))
            assert found == pytest.approx(loss, rel=1e-4)


def test_a_surface_is_the_loss_at_its_points(path: landscape.Trajectory) -> None:
    weights, learner = stored_weights()
    plane = plane_through(weights[0], weights[1], weights[-1])
    x, y = DIGITS.stream(DIGITS.config("ocar")).test(2)
    chosen = torch.linspace(0, len(y) - 1, 30).round().long()
    unit = {label: i for i, label in enumerate(learner.classes)}
    units = torch.tensor([unit[label] for label in y[chosen].tolist()])
    point = plane.points(torch.tensor([path.grid_x[3], path.grid_y[1]]))
    nn.utils.vector_to_parameters(point.float(), learner.model.parameters())
    normalize = learner.settings.normalize
    assert normalize is not None
    with torch.no_grad():
        logits = learner.model(normalize(x[chosen]).float())[:, :10]
    found = float(nn.functional.cross_entropy(logits, units))
    assert path.surfaces[2][1][3] == pytest.approx(found, rel=1e-4)
    mean = np.mean([path.surfaces[task][1][3] for task in range(5)])
    assert path.mean_surface[1][3] == pytest.approx(mean)


def test_a_path_has_its_boundaries_and_lengths(path: landscape.Trajectory) -> None:
    assert [path.times[i] for i in path.boundaries] == [4, 8, 12, 16, 20]
    assert path.times[:4] == (0, 1, 2, 4)  # the first after a boundary, then every second
    weights, _ = stored_weights()
    for a, b, straight in zip(weights, weights[1:], path.straight, strict=False):
        assert straight == pytest.approx(float((b - a).norm()), rel=1e-5)
    assert all(a >= b * (1 - 1e-6) for a, b in zip(path.length, path.straight, strict=True))
    for place in (0, path.boundaries[0], path.boundaries[-1]):
        assert path.off_plane[place] == pytest.approx(0, abs=1e-4)


def test_a_model_with_batchnorm_has_no_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_buffers(setup: Setup, config: ocar_lab.RunConfig) -> ocar.Learner:
        model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 16))
        return ocar.ER(model, lr=0.1)

    monkeypatch.setattr(Setup, "learner", with_buffers)
    with pytest.raises(ConfigError, match="BatchNorm"):
        DIGITS.make("er", quiet)
