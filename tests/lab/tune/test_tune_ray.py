"""A real Ray cluster of two nodes, one of which is killed in the middle of a search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_runs import small

from ocar.errors import ConfigError
from ocar_lab.cli import main
from ocar_lab.experiment import Ended as RunEnded
from ocar_lab.experiment import Job, run_many
from ocar_lab.experiment.executors import Workers
from ocar_lab.experiment.executors.cluster import Cluster
from ocar_lab.runs import find_runs
from ocar_lab.tune import Moved, SearchEvent, Study, TuneConfig

ray = pytest.importorskip("ray", reason="ray is not installed")

pytestmark = [
    pytest.mark.long,
    # Of Ray's own: sockets and files that it leaves to the garbage collector, what will change.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes with a core each."""
    from ray.cluster_utils import Cluster as Nodes

    size = {"num_cpus": 1, "object_store_memory": 100_000_000}
    nodes = Nodes(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        nodes.second = nodes.add_node(**size)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        nodes.shutdown()


def test_a_node_that_is_killed_loses_one_trial(cluster: Any, tmp_path: Path) -> None:
    config = TuneConfig(
        benchmark="split-digits",
        method="er",
        tasks=2,
        device="cpu",
        threads=1,
        settings={"passes": 30},
    )
    executor = Cluster(address=cluster.address)
    assert executor.workers == 2
    moved: set[int] = set()
    killed: set[int] = set()
    study = Study(config, tmp_path)

    def listen(event: SearchEvent) -> None:
        if isinstance(event, Moved) and event.done > 0:
            moved.add(event.number)
        under_way = {t.number for t in study.trials() if t.state == "running"}
        if not killed and len(moved & under_way) == 2:  # one on each node
            killed.update(moved & under_way)
            cluster.remove_node(cluster.second, allow_graceful=False)

    with study:
        study.search(executor, trials=6, listen=listen)
        states = {t.number: t.state for t in study.trials()}
        (lost,) = [t for t in study.trials() if t.state == "failed"]
        assert study.ranking()[0].value is not None
    assert lost.number in killed
    assert "Its worker in the cluster died" in lost.error
    assert sorted(states.values()) == ["failed"] + ["finished"] * 5
    assert not ray.is_initialized()


def test_runs_requests_to_stop_and_the_command_line(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def jobs(**values: Any) -> list[Job]:
        return [Job(config=small(seed=s, probe=False, **values), out=tmp_path) for s in range(2)]

    workers = Workers(count=None, ray=cluster.address)
    short = jobs(max_batches=3)
    ended = [m for m in run_many(short, workers=workers) if isinstance(m, RunEnded)]
    assert {m.job: m.state for m in ended} == {0: "finished", 1: "finished"}
    asked: list[bool] = []
    states = {}
    for message in run_many(
        jobs(settings={"passes": 200}), workers=workers, stop=lambda: bool(asked)
    ):
        asked.append(True)
        if isinstance(message, RunEnded):
            states[message.job] = message.state
    assert set(states.values()) == {"stopped"}
    run = ["run", "split-digits", "er", "--seeds", "5", "6", "--max-batches", "3", "--no-probe"]
    assert main([*run, "--ray", cluster.address, "--out", str(tmp_path / "runs")]) == 0
    assert {run.seed for run in find_runs(tmp_path / "runs")} == {5, 6}
    call = ["tune", "split-digits", "er", "--tasks", "1", "--trials", "2", "--out", str(tmp_path)]
    assert main([*call, "--ray", cluster.address]) == 0
    assert "2 trials, 2 finished" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="No node of the Ray cluster has 1 cores and 1 GPUs"):
        Cluster(address=cluster.address, gpus=1)
    assert not ray.is_initialized()


def test_where_there_is_no_cluster() -> None:
    with pytest.raises(ConfigError, match=r"There is no Ray cluster at '127.0.0.1:1'. To start"):
        Cluster(address="127.0.0.1:1")
    for address in ("ray://127.0.0.1:10001", "somewhere", ":80"):
        with pytest.raises(ConfigError, match=r"Must be auto, or HOST:PORT"):
            Cluster(address=address)
