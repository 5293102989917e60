"""Libraries that are loaded while data is read."""

import threading

import pytest
import torch

from ocar.experiment import libraries
from ocar.experiment.libraries import loading_libraries


def test_nothing_is_loaded_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_load", lambda device: pytest.fail("loaded"))
    with loading_libraries(torch.device("cpu")):
        pass


def test_for_a_gpu_they_are_there_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    began, loaded, may_end = threading.Event(), [], threading.Event()

    def load(device: torch.device) -> None:
        began.set()
        may_end.wait(10)
        loaded.append(device)

    monkeypatch.setattr(libraries, "_load", load)
    with loading_libraries(torch.device("cuda")):
        assert began.wait(10)  # beside what is done here
        assert not loaded
        may_end.set()
    assert loaded == [torch.device("cuda")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_is_drawn() -> None:
    device = torch.device("cuda")
    torch.cuda.init()
    before = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    libraries._load.__wrapped__(device)
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], torch.cuda.get_rng_state(device))
