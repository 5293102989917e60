"""Values that the host reads later, and operations in an order that is a tensor."""

import pytest
import torch

from ocar.accel.transfer import Later, _apply_selected, apply_in_order


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


@pytest.mark.parametrize("apply", [apply_in_order, _apply_selected], ids=["host", "device"])
def test_operations_are_applied_in_the_order_of_a_tensor(apply) -> None:
    operations = [lambda x: x + 1, lambda x: x * 2, lambda x: x**2]
    x = torch.tensor([1.0, 3.0])
    for order, want in (([0, 1, 2], [16.0, 64.0]), ([2, 0, 1], [4.0, 20.0])):
        assert apply(operations, x, torch.tensor(order)).tolist() == want
