"""Normalisation layers."""

from __future__ import annotations

from torch import nn

from zoo.parts import Group, conv, mlp

zoo = Group("normalisation")


zoo("BatchNorm1d", lambda: mlp(nn.BatchNorm1d(16)))
zoo(
    "BatchNorm without running statistics",
    lambda: mlp(nn.BatchNorm1d(16, track_running_stats=False)),
)
zoo("BatchNorm, cumulative average", lambda: mlp(nn.BatchNorm1d(16, momentum=None)))
zoo("LayerNorm", lambda: mlp(nn.LayerNorm(16)))
zoo("RMSNorm", lambda: mlp(nn.RMSNorm(16)))
zoo("GroupNorm", lambda: conv(nn.GroupNorm(2, 8)), fed="images")
zoo("InstanceNorm", lambda: conv(nn.InstanceNorm2d(8, affine=True)), fed="images")
zoo(
    "InstanceNorm with running statistics",
    lambda: conv(nn.InstanceNorm2d(8, track_running_stats=True)),
    fed="images",
)
zoo("LocalResponseNorm", lambda: conv(nn.LocalResponseNorm(2)), fed="images")
