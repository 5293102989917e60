"""Operations and bytes against PyTorch's own counter and against formulas written out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from benchmarks.floor import Work, count_batch, floor_seconds, layer_shapes, learner_work
from benchmarks.inside import FAMILIES, OTHER, OWN, family
from benchmarks.parts import by_family
from benchmarks.setup import Setup, slim_learner, slim_resnet
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ocar

CPU = torch.device("cpu")
PACKAGE = Path(ocar.__file__).parent
SETUP = Setup.quick(CPU)


def counted(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Operations of a forward and of a backward pass, as PyTorch counts them."""
    with FlopCounterMode(display=False) as forward:
        loss = model(x).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("passes", [1, 3])
def test_forward_and_backward_are_what_pytorch_counts(passes: int) -> None:
    model = slim_resnet(SETUP)
    x = torch.randn(4, 3, 32, 32)
    shapes = layer_shapes(model, x)
    work = count_batch(shapes, samples=4, passes=passes, columns=2)
    forward, backward = counted(model, x)
    assert work["forward"].operations == passes * forward
    assert work["backward"].operations == passes * backward


def test_the_pull_back_is_a_backward_pass_without_the_weights_for_each_column() -> None:
    model = slim_resnet(SETUP).requires_grad_(False)
    model.stem[1].requires_grad_(True)  # so that gradients go down to the first layer's output
    x = torch.randn(4, 3, 32, 32)
    work = count_batch(layer_shapes(model, x), samples=4, passes=3, columns=2)
    assert work["pull-back of the Fisher's root"].operations == 2 * counted(model, x)[1]


def test_one_linear_layer_written_out() -> None:
    (shape,) = layer_shapes(nn.Linear(5, 3), torch.zeros(2, 5))
    work = count_batch([shape], samples=7, passes=2, columns=4)
    weights = 5 * 3 + 3
    assert work == {
        "forward": Work(2 * 2 * 7 * 5 * 3, 2 * 4 * (7 * (5 + 3) + weights)),
        "backward": Work(2 * 2 * 7 * 5 * 3, 2 * 4 * (7 * (5 + 3) + weights)),
        "pull-back of the Fisher's root": Work(0, 0),
        "factors": Work(7 * (6 * 7 + 4 * 3 * 4), 4 * (7 * (5 + 4 * 3) + 2 * (36 + 9))),
        "inverses": Work(6**3 + 3**3, 4 * 2 * (36 + 9)),
        "preconditioning": Work(2 * 2 * (9 * 6 + 3 * 36), 2 * 4 * (36 + 9 + 2 * 18)),
        "update": Work(2 * 2 * weights, 2 * 3 * 4 * weights),
    }


def test_batch_norm_counts_with_its_bytes() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3))
    shapes = layer_shapes(model, torch.zeros(2, 2, 4, 4))
    alone = count_batch(shapes[:1], samples=5, passes=1, columns=2)
    both = count_batch(shapes, samples=5, passes=1, columns=2)
    numbers = 5 * 3 * 16
    for part, times in {"forward": 2, "backward": 3, "pull-back of the Fisher's root": 5}.items():
        assert both[part].operations == alone[part].operations
        assert both[part].bytes - alone[part].bytes == 4 * times * numbers
    assert model.training


def test_a_learner_is_counted_with_its_own_settings() -> None:
    learner = slim_learner("ocar", classes=5, setup=SETUP)
    shapes = layer_shapes(learner.model, torch.zeros(2, 3, 32, 32))
    assert learner_work(learner) == count_batch(shapes, samples=20, passes=3, columns=2)


def test_the_floor_is_the_longer_of_operations_and_bytes_part_by_part() -> None:
    works = {"a": Work(100, 10), "b": Work(10, 100)}
    assert floor_seconds(works, operations=10, bytes=10) == 20
    assert floor_seconds(works, operations=100, bytes=10) == 1 + 10


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int=512>(cudnnTensorStruct)", 0),
        ("void at::native::batch_norm_backward_reduce_channels_last_kernel<4, float>()", 0),
        ("void potrf_alg2_set_info<float>(int, int, int*)", 1),
        ("void trsm_left_kernel<float, 256, 4, false>(cublasTrsmParams<float>)", 1),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize128", 2),
        ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop>(Params)", 2),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3", 3),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128>", 3),
        ("Memcpy DtoD (Device -> Device)", 4),
        ("void at::native::index_elementwise_kernel<128, 4>()", 4),
        ("void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>()", 5),
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>>()", 5),
        ("forward", 0),  # our own
        ("subtract", 1),
        ("multiply", 3),
        ("something new", None),
    ],
)
def test_kernels_are_told_apart_by_their_names(kernel: str, kind: int | None) -> None:
    assert family(kernel) == (OTHER if kind is None else list(FAMILIES)[kind])


def test_our_own_kernels_are_known_by_the_names_that_they_have() -> None:
    sources = [path.read_text() for path in sorted((PACKAGE / "accel" / "triton").glob("*.py"))]
    jitted = {name for text in sources for name in re.findall(r"^def (\w+)\(", text, re.M)}
    assert OWN.keys() <= FAMILIES.keys()
    assert {name for kernels in OWN.values() for name in kernels} <= jitted


def test_times_of_kernels_are_summed_by_kind() -> None:
    kernels = [("a_gemm", 1.0), ("Memset (Device)", 2.0), ("b_gemm", 4.0)]
    assert by_family(kernels) == {"products": 5.0, "copies": 2.0}
