"""N ranks take the step that one process takes on the whole batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from axes import InAxes
from experiments import ranks_messages as cost
from rank_cases import (
    METHODS,
    WORKER,
    finish,
    learn,
    make_learner,
    make_model,
    make_stream,
    parse,
    start_ranks,
)
from torch import nn
from torch.testing import assert_close

import ocar
from ocar.accel.ranks import bounds
from ocar.curvature import CURVATURES
from ocar.curvature.blocks import Blocks
from ocar.errors import ConfigError
from ocar.models.check import may_draw

ALIKE = {"rtol": 0.0, "atol": 1e-9}
"""What several ranks and one process may differ by, in float64."""

HOW = ("uneven", "sharded", "inverses", "forget", "export", "spoil")
"""Options of a case that are no settings of a learner."""

SHARED = ("broadcast", "sharded")
"""Where inverses may be beside on every rank."""

REQUIRED = ("er", "ocar", "ocar-ace", "der++")
NETWORKS = ("mlp", "groupnorm", "batchnorm", "transformer")
VARIANTS = (
    *(f"{method} mlp" for method in METHODS if method not in REQUIRED),
    *(f"ocar mlp curvature={kind} inverses=sharded" for kind in ("axes", "foof")),
    "ocar mlp weighting=both",
    "ocar mlp fisher=exact",
    "ocar mlp fisher=sampled(2)",
    "ocar mlp fisher_forward=own",
    "ocar mlp fisher_passes=every inverses=broadcast",
    "ocar batchnorm damping_kind=exact",
    "ocar groupnorm norm_layers=True inverses=sharded",
    "ocar mlp memory_kind=reservoir",
    "ocar batchnorm seed=8 replay_batch=3",
    "agem mlp lr=0.05",
    "lpr mlp lr=0.05",
    "er-lwf batchnorm lr=0.05",
)


def check(folder: Path, size: int, batches: int, cases: list[str]) -> None:
    """Compare the whole state of each rank with that of one process."""
    finish(start_ranks(size, [str(folder), str(batches), *cases]))
    for case in cases:
        method, model, settings = parse(case)
        how = {name: settings.get(name, False) for name in ("forget", "spoil")}
        settings = {n: v for n, v in settings.items() if n not in HOW}
        learner = make_learner(method, model, None, **settings)
        one = learn(learner, make_stream(model, batches), **how)
        tensors, values = one.state()
        many = [torch.load(folder / f"{case.replace(' ', '_')}.{rank}") for rank in range(size)]
        for found, plain in many:
            assert plain == values, case
            assert found.keys() == tensors.keys(), case
            for key, tensor in found.items():
                assert torch.equal(tensor, many[0][0][key]), f"{case}: {key} differs between ranks"
                if not key.startswith("generator.model"):  # it moves where a layer may draw
                    assert_close(tensor, tensors[key], **ALIKE, msg=f"{case}: {key}")


def test_two_ranks_learn_as_one_process_does(tmp_path):
    cases = ["er mlp", "ocar groupnorm", "ocar-ace mlp", "der++ batchnorm"]
    cases += ["ocar batchnorm inverses=broadcast", "ocar transformer inverses=sharded"]
    cases += ["ocar mlp uneven=True", "der++ mlp sharded=True memory=7"]
    cases += [f"ocar mlp spoil=True inverses={how}" for how in SHARED]
    check(tmp_path, 2, 24, cases)


def test_recurrent_layers_slow_weights_and_a_memory_that_forgets_are_shared_too(tmp_path):
    cases = ["ocar recurrent", "ocar-slow batchnorm", "ocar mlp forget=True"]
    check(tmp_path, 2, 12, [*cases, "der++ mlp forget=True sharded=True memory=31"])


def test_ranks_export_the_model_alone_or_with_a_sharded_memory_together(tmp_path):
    cases = ["er mlp export=True sharded=True", "er mlp export=True closed_form_head=True"]
    cases += ["ocar-slow mlp sharded=True"]  # without the head that the ranks cannot solve for
    check(tmp_path, 2, 4, cases)
    names = ["replicated.0", "sharded.0", "sharded.1"]
    assert sorted(path.stem for path in tmp_path.glob("*.pt2")) == names


def test_four_ranks_learn_as_one_process_does(tmp_path):
    # Of 10 new samples each rank gets two or three; of 3 replayed alone, all are rank 0's.
    check(
        tmp_path,
        4,
        12,
        [
            "ocar batchnorm",
            "er-ace mlp replay_batch=3",
            "er mlp uneven=True",
            "ocar batchnorm sharded=True inverses=sharded",
        ],
    )


@pytest.mark.sweep
@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("size", [2, 4])
def test_the_weights_after_200_batches_are_those_of_one_process(tmp_path, size, model):
    cases = [f"{method} {model}" for method in REQUIRED]
    cases += [f"{case} sharded=True" for case in cases]
    check(tmp_path, size, 200, [*cases, *(f"ocar {model} inverses={how}" for how in SHARED)])


@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.sweep)]
)
def test_other_methods_and_options_are_shared_too(tmp_path, size, monkeypatch):
    monkeypatch.setitem(CURVATURES, "axes", InAxes)
    check(tmp_path, size, 40, [*VARIANTS])


def test_ranks_agree_where_layers_draw_or_see_their_own_samples_or_factors_are_rounded(tmp_path):
    cases = ["ocar batchnorm own=True", "er batchnorm own=True", "ocar dropout", "er dropout"]
    cases += ["ocar mlp factor_dtype=float16", "ocar mlp curvature=ekfac"]
    finish(start_ranks(2, [str(tmp_path), "12", *cases]))
    for case in cases:
        first, second = (torch.load(tmp_path / f"{case.replace(' ', '_')}.{r}") for r in (0, 1))
        assert first[1] == second[1]
        for name, tensor in first[0].items():
            assert torch.equal(tensor, second[0][name]), f"{case}: {name}"
        method, model, settings = parse(case)
        for name in ("own", "factor_dtype"):
            settings.pop(name, None)
        one, _ = learn(make_learner(method, model, None), make_stream(model, 12)).state()
        weights = [name for name in one if name.startswith("model.") and one[name].dim() > 1]
        assert not any(torch.allclose(one[name], first[0][name], atol=1e-6) for name in weights)


def test_factors_with_16_bits_are_those_with_all_up_to_rounding():
    texts = finish(start_ranks(2, [], WORKER.with_name("rank_rounded.py")))
    assert texts[0] == texts[1]
    *lines, finite = texts[0].splitlines()
    errors = {name: float(error) for name, error in map(str.split, lines)}
    assert errors.keys() == {"loose.F", "huge.A", "large.A", "tiny.A", "zero.A"}
    assert errors.pop("zero.A") == 0
    # Each rank's part is rounded, and the sum; a rank's largest may be twice that of the mean.
    assert all(0 < error < 2 * 2 * 2**-11 for error in errors.values()), errors
    assert finite == "finite loose.F huge.A tiny.A zero.A"


def test_a_stream_is_evaluated_as_with_one_process(tmp_path):
    texts = finish(start_ranks(2, [str(tmp_path), "0", "er evaluated"]))
    learner = make_learner("er", "evaluated", None)
    (*_, end) = ocar.evaluate(learner, ocar.make_stream("split-digits"), every="task")
    assert texts == [f"er evaluated: accuracy {end.summary.acc:.6f}\n"] * 2


def test_a_batch_takes_the_messages_and_bytes_of_the_cost_model(tmp_path):
    cases = ["er mlp", "ocar mlp", "ocar batchnorm inverses=sharded", "er batchnorm"]
    cases += ["ocar mlp curvature=ekfac", "ocar transformer inverses=broadcast"]
    cases += ["ocar transformer factor_dtype=float16"]
    texts = finish(start_ranks(2, [str(tmp_path), "6", *cases]))
    for case in cases:
        method, model, settings = parse(case)
        stream, inverses = make_stream(model, 6), settings.pop("inverses", "replicated")
        factor_dtype = settings.pop("factor_dtype", "same")
        learner = learn(make_learner(method, model, None, **settings), stream)
        parameters = list(learner.model.parameters())
        blocks = learner.transform.curvature.blocks if method == "ocar" else []
        norms = [m for m in learner.model.modules() if isinstance(m, nn.BatchNorm2d)]
        load = cost.Load(
            new=len(stream[0][0]),
            replayed=learner.settings.replay_batch,
            passes=learner.settings.passes,
            sample=stream[0][0][0].nbytes,
            outputs=learner.head.capacity,
            parameters=sum(p.numel() for p in parameters),
            tensors=len(parameters),
            factors=tuple(map(numbers_sent, blocks)),
            statistics=tuple(len(block.buffer.shapes) for block in blocks),
            pairs=tuple(p for block in blocks for p in getattr(block, "_pairs", {}).values()),
            inverses=inverses,
            factor_dtype=factor_dtype,
            channels=tuple(m.num_features for m in norms),
            draws=may_draw(learner.model),
            number=8,
        )
        sent = list(cost.messages(load, 2))
        for kind in ("gather", "sum", "broadcast"):
            sizes = [message.size for message in sent if message.kind == kind]
            line = f"{case}: {kind} {len(sizes)} messages, {sum(sizes)} bytes\n"
            if sizes:
                assert all(line in text for text in texts), f"{line}{texts[0]}"
            else:
                assert f"{case}: {kind}" not in texts[0]


def numbers_sent(block: Blocks[Any]) -> int:
    """Of A and G the triangles, of what is set and not estimated nothing, of the rest all."""
    found = 0
    for name, shape in block.buffer.shapes.items():
        kind = name.rpartition(".")[2]
        if kind in ("A", "G"):
            found += cost.triangles([shape])
        elif kind not in ("UA", "UG"):
            found += math.prod(shape)
    return found


def test_shares_are_in_order_and_as_equal_as_can_be():
    for rows in range(20):
        for size in range(1, 7):
            limits = bounds(rows, size)
            counts = [last - first for first, last in limits]
            assert [row for limit in limits for row in range(*limit)] == list(range(rows))
            assert max(counts) - min(counts) <= 1


def test_without_torchrun_there_is_one_rank_that_sends_nothing():
    ranks = ocar.Ranks()
    learner = ocar.ER(make_model("mlp"), ranks=ranks, lr=0.1, memory=10)
    for x, y in make_stream("mlp", 2):
        assert torch.equal(ranks.share(x), x)
        learner.learn(x, y)
    assert (ranks.rank, ranks.size, ranks.connected, learner.ranks) == (0, 1, False, None)
    assert not ranks.traffic.messages


def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch):
    ranks = ocar.Ranks()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks.device == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="no GPU for process 2 of this machine, which has 2"):
        _ = ranks.device


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf")])
def test_a_timeout_is_a_time(timeout):
    with pytest.raises(ConfigError, match=r"Invalid timeout=.*Must be larger than 0, in seconds"):
        ocar.Ranks(timeout=timeout)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("batchnorm", "'synchronized' or 'own'"),
        ("memory", "'replicated' or 'sharded'"),
        ("inverses", "'replicated' or 'broadcast' or 'sharded'"),
        ("factor_dtype", "'same' or 'float16'"),
    ],
)
def test_placements_have_names(name, allowed):
    with pytest.raises(ConfigError, match=f"Invalid {name}='none'. Must be {allowed}."):
        ocar.Ranks(**{name: "none"})
