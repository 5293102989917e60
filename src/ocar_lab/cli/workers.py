"""How many workers, and where, from the options of a command."""

from __future__ import annotations

import os
from typing import Literal

from ocar.errors import ConfigError
from ocar_lab.experiment.executors import Workers

MOST_ON_GPU = 8
"""Runs that share a GPU unless ``--workers`` says otherwise; memory is the limit."""

Device = Literal["auto", "cpu", "cuda"]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_workers(device: Device, jobs: int) -> int:
    """How many runs to do side by side on this machine, if nothing is said.

    Args:
        device: Where they compute.
        jobs: How many there are.
    """
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return min(MOST_ON_GPU, jobs)
    return min(cores(), jobs)


def check_workers(workers: int | None) -> None:
    """Refuse a number of workers that makes no sense.

    Raises:
        ConfigError: It is less than 1.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"Invalid --workers {workers}. Must be at least 1.")


def cluster_device(device: Device, gpus: float, *, flag: str) -> Device:
    """Where work on a Ray cluster computes, which this machine cannot look up.

    Args:
        device: What the user says.
        gpus: GPUs that each piece of work takes.
        flag: The option that says so.

    Raises:
        ConfigError: The two do not fit.
    """
    if gpus < 0:
        raise ConfigError(f"Invalid {flag} {gpus:g}. Must be at least 0.")
    if device == "cuda" and not gpus:
        raise ConfigError(f"Invalid --device cuda on a Ray cluster without {flag}, such as 0.25.")
    if device == "cpu" and gpus:
        raise ConfigError(f"Invalid {flag} {gpus:g} with --device cpu.")
    return "cuda" if gpus else "cpu"


def make_workers(
    workers: int | None, *, ray: str | None, gpus: float, threads: int, flag: str
) -> Workers:
    """The workers that options stand for.

    Args:
        workers: How many; None on a Ray cluster for as many as it has room for.
        ray: Address of a Ray cluster, if one is meant.
        gpus: GPUs of the cluster for each.
        threads: Threads, and so cores of the cluster, for each.
        flag: The option that says how many GPUs.

    Raises:
        ConfigError: GPUs are shared out only by a cluster.
    """
    if ray is not None:
        return Workers(count=workers, ray=ray, cpus=threads, gpus=gpus)
    if gpus:
        raise ConfigError(f"Invalid {flag} without --ray: on one machine they share its GPU.")
    return Workers(count=workers)
