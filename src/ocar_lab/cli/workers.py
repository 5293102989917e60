"""Who does the work, from the options of a command."""

from __future__ import annotations

import os
from typing import Any

from ocar.errors import ConfigError
from ocar_lab.experiment.executors import Workers

MOST_ON_GPU = 8
"""Runs that share a GPU unless ``--workers`` says otherwise; its memory is the limit."""


def choose_workers(
    config: dict[str, Any],
    *,
    workers: int | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    gpus: float = 0.0,
    flag: str = "",
) -> tuple[Workers, dict[str, Any]]:
    """The workers, and the configuration with threads and device for each of them.

    Args:
        config: Fields of the configuration that the user gave.
        workers: Number of workers that the user gave.
        jobs: Number of jobs: by default one worker for each, as far as there are cores, or on a
            GPU up to 8. None for one worker by default.
        ray: Address of a Ray cluster.
        gpus: GPUs of the cluster for each worker.
        flag: The flag that sets ``gpus``, for errors.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"Invalid --workers {workers}. Must be at least 1.")
    if gpus < 0:
        raise ConfigError(f"Invalid {flag} {gpus:g}. Must be at least 0.")
    device, threads = config.get("device", "auto"), config.get("threads")
    if ray is None:
        if gpus:
            raise ConfigError(f"Invalid {flag} without --ray: on one machine they share its GPU.")
        count = workers or (1 if jobs is None else _most_at_once(device))
        count = count if jobs is None else min(count, jobs)
        return Workers(count=count), config | {"threads": threads or max(1, cores() // count)}
    if device == "cuda" and not gpus:
        raise ConfigError(f"Invalid --device cuda on a Ray cluster without {flag}, such as 0.25.")
    if device == "cpu" and gpus:
        raise ConfigError(f"Invalid {flag} {gpus:g} with --device cpu.")
    if jobs is not None and workers is not None:
        workers = min(workers, jobs)
    chosen = {"device": "cuda" if gpus else "cpu", "threads": threads or 1}
    return Workers(count=workers, ray=ray, cpus=threads or 1, gpus=gpus), config | chosen


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _most_at_once(device: str) -> int:
    from ocar import accel

    return MOST_ON_GPU if device != "cpu" and accel.has_gpu() else cores()
