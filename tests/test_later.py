"""Numbers that are read later."""

import pytest
import torch

from ocar.evaluate.later import Later


def test_on_a_cpu_it_is_the_tensor() -> None:
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    later = Later(tensor)
    assert later.read().tolist() == [1.0, 2.0]
    assert not later.read().requires_grad
    assert float(Later(torch.tensor(3.5))) == 3.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_what_it_was_when_it_was_made() -> None:
    tensor, others = torch.zeros(3, device="cuda"), []
    work = torch.randn(2000, 2000, device="cuda")
    for step in range(20):
        work = (work @ work).sigmoid()
        tensor.fill_(step)
        others.append(Later(tensor))  # overwritten by the next
    assert [other.read().tolist() for other in others] == [[float(step)] * 3 for step in range(20)]
    assert others[0].read().is_cpu
