"""Plain networks of fully connected layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from zoo.parts import UNITS, Group, Net, head, mlp

zoo = Group("plain")


zoo("one linear layer", lambda: nn.Linear(6, UNITS))
zoo("two layers", mlp)
zoo(
    "no bias",
    lambda: nn.Sequential(
        nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, UNITS, bias=False)
    ),
)
zoo("six layers", lambda: mlp(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.Tanh()))))
zoo("Sequential in Sequential", lambda: nn.Sequential(nn.Sequential(nn.Sequential(mlp()))))
zoo("PReLU", lambda: mlp(nn.PReLU()))
zoo("GELU, SiLU, ELU, Softplus", lambda: mlp(nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus()))
zoo("GLU", lambda: nn.Sequential(nn.Linear(6, 32), nn.GLU(), head()))
zoo(
    "maxout",
    lambda: Net(
        lambda m, x: m.head(m.a(x).unflatten(1, (16, 2)).amax(-1)), a=nn.Linear(6, 32), head=head()
    ),
)
zoo(
    "residual",
    lambda: Net(
        lambda m, x: m.head(m.b((h := m.a(x)).relu()) + h),
        a=nn.Linear(6, 16),
        b=nn.Linear(16, 16),
        head=head(),
    ),
)
zoo(
    "dense, concatenated",
    lambda: Net(
        lambda m, x: m.head(torch.cat([x, m.a(x).relu()], 1)), a=nn.Linear(6, 10), head=head()
    ),
)
zoo(
    "highway",
    lambda: Net(
        lambda m, x: m.head(torch.lerp(h := m.a(x), m.b(h).relu(), m.g(h).sigmoid())),
        a=nn.Linear(6, 16),
        b=nn.Linear(16, 16),
        g=nn.Linear(16, 16),
        head=head(),
    ),
)
zoo(
    "Bilinear",
    lambda: Net(lambda m, x: m.head(m.a(x, x).tanh()), a=nn.Bilinear(6, 6, 16), head=head()),
)
zoo(
    "Fourier features",
    lambda: Net(
        lambda m, x: m.head(torch.cat([(x @ m.f).sin(), (x @ m.f).cos()], 1)),
        f=nn.Parameter(torch.randn(6, 8) / 4),
        head=head(),
    ),
)
zoo(
    "radial basis",
    batches=40,
    make=lambda: Net(
        lambda m, x: m.head((-torch.cdist(x, m.c).square() / 16).exp()),
        c=nn.Parameter(2 * torch.randn(16, 6)),
        head=head(),
    ),
)
zoo(
    "splines on each input",
    lambda: Net(
        lambda m, x: m.head((x.unsqueeze(-1) - m.knots).tanh().flatten(1)),
        knots=nn.Parameter(torch.linspace(-2, 2, 4)),
        head=head(24),
    ),
)
zoo(
    "ParameterList",
    lambda: Net(
        lambda m, x: m.head((x @ m.w[0] + m.w[1]).relu()),
        w=nn.ParameterList([torch.randn(6, 16) / 3, torch.zeros(16)]),
        head=head(),
    ),
)
zoo(
    "ModuleDict and ModuleList",
    lambda: Net(
        lambda m, x: m.d["head"](m.l[1](m.l[0](x))),
        l=nn.ModuleList([nn.Linear(6, 16), nn.ReLU()]),
        d=nn.ModuleDict({"head": head()}),
    ),
)
zoo(
    "scaled by a scalar",
    lambda: Net(
        lambda m, x: m.head(m.a(x).tanh() * m.s),
        a=nn.Linear(6, 16),
        s=nn.Parameter(torch.ones(())),
        head=head(),
    ),
)
zoo(
    "Cosine similarity as features",
    lambda: Net(
        lambda m, x: m.head(4 * F.normalize(m.a(x), dim=1)), a=nn.Linear(6, 16), head=head()
    ),
)
