"""How operations are made fast: the only package that knows devices, layouts, streams and kernels.

Each operation has a plain definition in PyTorch, which runs everywhere, and perhaps faster
implementations, which are chosen by device, type and shape of the arguments. See
:mod:`ocar.accel.operation`.

===========================  ====================================================================
``gram``                     Gram matrices of many layers into one flat buffer
``mix_and_damp``             moving average, π and damping of all Kronecker factors
``invert``                   inverses of all factors, with a report of failures
``inverse_tensors``          the inverses of some layers, to send to other ranks
``precondition``             products with the inverses, all layers
``patches``                  what a convolution sees, as rows
``weight_gradients``         gradients of the weights of several convolutions
``norm_act``                 BatchNorm, addition, ReLU
``snapshot``                 a copy of what a step changes
``commit_or_rollback``       the guard's verdict, as one masked write
``write_rows``               samples into a memory
``divergence``               how far predictions have moved
``inverse``                  inverses of positive definite matrices
===========================  ====================================================================

:class:`Graph` records a function of tensors and launches it; :func:`parallel` runs independent jobs
in parallel inside a recording. :class:`Ranks` are processes that learn together, and
:class:`SharedModel` shares the passes of a model out over them, :class:`SharedInverses` its
inverses.
"""

from ocar.accel import kronecker_host, kronecker_triton
from ocar.accel.backward import (
    Backward,
    batched_backward,
    start_backward_thread,
    without_warnings_of_batching,
)
from ocar.accel.buffer import FactorBuffer, Pair
from ocar.accel.convolution import inputs_only
from ocar.accel.devices import (
    OUT_OF_MEMORY,
    adam,
    choose_device,
    gpu_name,
    has_gpu,
    many_images,
    own_stream,
)
from ocar.accel.divergence import (
    MASKED,
    Distance,
    divergence,
    frozen_statistics,
    half_square,
    kl_divergence,
    predictions,
)
from ocar.accel.draws import OwnDraws, host_and
from ocar.accel.gram import gram
from ocar.accel.graph import Graph, release_memory
from ocar.accel.kronecker import (
    LayerGradient,
    damping_levels,
    inverse_tensors,
    invert,
    mix_and_damp,
    precondition,
)
from ocar.accel.layout import (
    Scratch,
    from_weight_matrix,
    inner,
    join_inputs,
    lay_out_,
    saved_order,
    split_inputs,
    weight_matrix,
)
from ocar.accel.networks import register_resnet
from ocar.accel.norm import norm_act
from ocar.accel.operation import OPERATIONS, known
from ocar.accel.patches import Geometry, patches, transposed_patches
from ocar.accel.prediction import RepeatedPrediction, repeated_prediction
from ocar.accel.ranks import Ranks
from ocar.accel.rows import RowRecorder, Rows
from ocar.accel.shards import Shards
from ocar.accel.shared import SharedModel
from ocar.accel.shared_inverses import SharedInverses
from ocar.accel.snapshot import (
    COUNTS,
    Evidence,
    Snapshot,
    Tensors,
    Verdict,
    commit_or_rollback,
    snapshot,
)
from ocar.accel.streams import Fence, Side, is_recording, parallel, share_device
from ocar.accel.weight_gradients import weight_gradients
from ocar.accel.write_rows import write_rows

__all__ = [
    "COUNTS",
    "MASKED",
    "OPERATIONS",
    "OUT_OF_MEMORY",
    "Backward",
    "Distance",
    "Evidence",
    "FactorBuffer",
    "Fence",
    "Geometry",
    "Graph",
    "LayerGradient",
    "OwnDraws",
    "Pair",
    "Ranks",
    "RepeatedPrediction",
    "RowRecorder",
    "Rows",
    "Scratch",
    "Shards",
    "SharedInverses",
    "SharedModel",
    "Side",
    "Snapshot",
    "Tensors",
    "Verdict",
    "adam",
    "batched_backward",
    "choose_device",
    "commit_or_rollback",
    "damping_levels",
    "divergence",
    "from_weight_matrix",
    "frozen_statistics",
    "gpu_name",
    "gram",
    "half_square",
    "has_gpu",
    "host_and",
    "inner",
    "inputs_only",
    "inverse_tensors",
    "invert",
    "is_recording",
    "join_inputs",
    "kl_divergence",
    "known",
    "kronecker_host",
    "kronecker_triton",
    "lay_out_",
    "many_images",
    "mix_and_damp",
    "norm_act",
    "own_stream",
    "parallel",
    "patches",
    "precondition",
    "predictions",
    "register_resnet",
    "release_memory",
    "repeated_prediction",
    "saved_order",
    "share_device",
    "snapshot",
    "split_inputs",
    "start_backward_thread",
    "transposed_patches",
    "weight_gradients",
    "weight_matrix",
    "without_warnings_of_batching",
    "write_rows",
]
