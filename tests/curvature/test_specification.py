"""Curvatures without a model, and kinds of one's own under a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from nets import mlp, observe, set_gradients
from tolerances import EXACT
from torch import nn
from torch.testing import assert_close

import ocar
from ocar.curvature import CURVATURES, EKFAC, FOOF, KFAC, Curvature, DenseFisher, LayerCurvature
from ocar.curvature.blocks import Blocks
from ocar.curvature.fisher import Exact
from ocar.curvature.foof import InputBlocks
from ocar.curvature.layers import Layer, MatrixLayer
from ocar.errors import CheckpointError, ConfigError
from ocar.registry import describe, rebuild

KINDS = [KFAC, EKFAC, FOOF, DenseFisher]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def step(curvature: Curvature) -> list[torch.Tensor]:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    observe(curvature, x)
    set_gradients(curvature.model)
    curvature.precondition_()
    return [p.grad.clone() for p in curvature.model.parameters()]


def seeded_mlp() -> nn.Sequential:
    torch.manual_seed(3)
    return mlp()


# --- specifications -----------------------------------------------------------------------------


@EVERY_KIND
def test_a_bound_specification_is_the_curvature_itself(kind: type[Curvature]) -> None:
    specification = kind(fisher="exact", ema=0.5)
    assert specification.model is None
    bound = specification.bind(seeded_mlp(), damping=0.1)
    assert type(bound) is kind
    assert (bound.damping, bound.ema, bound.fisher) == (0.1, 0.5, "exact")
    assert (specification.damping, specification.model) == (1e-3, None)
    direct = kind(seeded_mlp(), fisher="exact", ema=0.5, damping=0.1)
    assert_close(step(bound), step(direct), rtol=0, atol=0)


def test_a_specification_can_be_bound_to_several_models() -> None:
    specification = KFAC(fisher="exact")
    small, large = specification.bind(mlp((5, 3))), specification.bind(mlp((5, 4, 3)))
    assert [list(kfac.layers) for kfac in (small, large)] == [["0"], ["0", "2"]]
    assert specification.head is None
    assert (small.head, large.head) == ("0", "2")


def test_the_arguments_make_it_again() -> None:
    specification = EKFAC(damping=0.1, fisher="top(3)", basis_every=4, sharing="reduce")
    arguments = specification.arguments()
    assert "model" not in arguments
    assert arguments["basis_every"] == 4
    again = EKFAC(**arguments)
    assert again.arguments() == arguments
    assert repr(again) == repr(specification)


def test_a_root_may_be_given_as_an_object() -> None:
    kfac = KFAC(fisher=Exact())
    assert kfac.root == Exact()
    assert kfac.arguments()["fisher"] == Exact()


def test_the_representation_shows_every_setting() -> None:
    assert repr(KFAC(damping=0.1, fisher="exact")) == (
        "KFAC(damping=0.1, ema=0.1, fisher='exact', likelihood='categorical', variance=1.0, "
        "degrees_of_freedom=5.0, head=None, exclude=(), include=(), track_norms=False, seed=0, "
        "weighting='gradients', sharing='expand', norm_layers=False, max_cost=1.5, "
        "damping_kind='factored', factor_scale='none')"
    )
    assert repr(EKFAC(mlp())).startswith("EKFAC(Sequential, damping=0.001, ")
    assert repr(EKFAC(mlp())).endswith("basis_every=50)")
    assert repr(FOOF()).startswith("FOOF(damping=0.001, ")


@EVERY_KIND
def test_settings_are_checked_without_a_model(kind: type[Curvature]) -> None:
    with pytest.raises(ConfigError, match=r"Invalid damping=0\."):
        kind(damping=0)
    with pytest.raises(ConfigError, match="Invalid fisher='exakt'"):
        kind(fisher="exakt")
    with pytest.raises(TypeError):
        kind(mlp(), 0.1)  # settings have names


@EVERY_KIND
@pytest.mark.parametrize("use", ["record", "update", "begin", "precondition_"])
def test_a_specification_cannot_be_used(kind: type[Curvature], use: str) -> None:
    arguments = (torch.zeros(2, 3),) if use == "update" else ()
    with pytest.raises(ConfigError) as caught:
        getattr(kind(), use)(*arguments)
    name = kind.__name__
    assert str(caught.value) == (
        f"{name} has no model. Give it one, {name}(model, ...), or give it to a learner: "
        "OCAR(model, curvature=...)."
    )


# --- a kind of one's own ------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Halved(LayerCurvature):
    """FOOF that halves the gradient as well."""

    factor: float = field(default=0.5, kw_only=True)

    def kinds(self) -> Mapping[type[Layer], type[Blocks[Any]]]:
        return {MatrixLayer: InputBlocks}

    def apply_(self) -> None:
        super().apply_()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor)


@pytest.fixture
def _registered() -> Iterator[None]:
    ocar.register("halved", Halved)
    yield
    del CURVATURES["halved"]


@pytest.mark.usefixtures("_registered")
def test_a_registered_kind_is_found_by_its_name() -> None:
    assert CURVATURES.find("halved") is Halved
    assert CURVATURES.name_of(Halved) == "halved"
    with pytest.raises(ConfigError, match=r"Unknown curvature 'halvd'\. Did you mean 'halved'\?"):
        CURVATURES.find("halvd")
    ocar.register("halved", Halved)  # the same again
    with pytest.raises(ConfigError, match="There is another curvature 'halved'"):
        ocar.register("halved", FOOF)


@pytest.mark.usefixtures("_registered")
def test_a_registered_kind_computes() -> None:
    options = {"fisher": "exact", "damping": 0.1}
    ours, theirs = Halved(seeded_mlp(), **options), FOOF(seeded_mlp(), **options)
    assert_close(step(ours), [gradient / 2 for gradient in step(theirs)], **EXACT)


@pytest.mark.usefixtures("_registered")
def test_a_registered_kind_learns_by_name_or_as_an_object() -> None:
    results = []
    for curvature in ("halved", Halved(fisher="sketched(2)", factor=0.5)):
        torch.manual_seed(3)
        learner = ocar.OCAR(
            mlp((5, 4, 3)), lr=0.05, tau_step=0.0, tau=0.1, ema=0.3, memory=10, curvature=curvature
        )
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
            learner.learn(x, torch.arange(4) % 3)
        assert type(learner.transform.curvature) is Halved
        results.append([p.detach() for p in learner.model.parameters()])
    assert_close(*results, rtol=0, atol=0)


@pytest.mark.usefixtures("_registered")
def test_a_registered_kind_can_be_described_and_made_again() -> None:
    plain = describe(Halved(factor=0.25, fisher=Exact()))
    assert plain["name"] == "halved"
    assert plain["arguments"]["fisher"] == "exact"
    again = rebuild(plain)
    assert type(again) is Halved
    assert again.factor == 0.25


def test_a_kind_without_a_name_cannot_be_saved() -> None:
    with pytest.raises(CheckpointError, match=r'ocar\.register\("a-name", Halved\)'):
        describe(Halved())


def test_the_names_of_all_kinds() -> None:
    expected = {"kfac": KFAC, "ekfac": EKFAC, "foof": FOOF, "dense": DenseFisher}
    assert dict(CURVATURES) == expected
