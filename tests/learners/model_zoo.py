"""Models of every kind that a learner may be given, and what becomes of each.

``ZOO`` has one entry a model: how it is made, what it is fed, the settings that it needs, and what
ER and OCAR do with it: they learn, or refuse it with a message. ``test_model_zoo.py`` tries them,
and the documentation lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

LEARNS = "learns"
UNITS = 4
"""Units of every head at the start; the stream has five classes, so that it has to grow."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model and what becomes of it."""

    make: Callable[[], nn.Module]
    group: str
    fed: str = "vectors"  #: A key of ``INPUTS``.
    settings: Mapping[str, Any] = field(default_factory=dict)  #: Of the learner.
    er: str = LEARNS  #: What ER does: it learns, or a part of its message.
    ocar: str = LEARNS  #: What OCAR does.
    batches: int = 18  #: That it learns.


ZOO: dict[str, Entry] = {}


class Net(nn.Module):
    """A module whose forward pass is a function of itself and the inputs."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        """Outputs."""
        return self.run(self, x)


def zoo(name: str, make: Callable[[], nn.Module], **about: Any) -> None:
    """Add a model; ``refused`` is what both methods say."""
    assert name not in ZOO
    refused = about.pop("refused", None)
    if refused is not None:
        about |= {"er": refused, "ocar": refused}
    ZOO[name] = Entry(make=make, group=_group, **about)


def head(inputs: int = 16) -> nn.Linear:
    """An output layer."""
    return nn.Linear(inputs, UNITS)


def mlp(*middle: nn.Module) -> nn.Sequential:
    """A small network with something in its middle."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), *middle, head())


def conv(*middle: nn.Module, channels: int = 8, area: int = 36) -> nn.Sequential:
    """A small convolutional network with something in its middle."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3), *middle, nn.ReLU(), nn.Flatten())
    return nn.Sequential(body, head(channels * area))


FIXED: dict[str, Any] = {"classes": range(5)}


def wide() -> nn.Linear:
    """An output layer with a unit for each of the five classes."""
    return nn.Linear(16, 5)


# --- what they are fed ---------------------------------------------------------------------------


def _centres(*shape: int) -> Tensor:
    return torch.randn(5, *shape, generator=torch.Generator().manual_seed(99))


def vectors(y: Tensor, generator: torch.Generator) -> Tensor:
    """Vectors of six numbers."""
    return _centres(6)[y] * 2 + torch.randn(len(y), 6, generator=generator) / 2


def images(y: Tensor, generator: torch.Generator) -> Tensor:
    """Images of 3 × 8 × 8 bytes."""
    coarse = (_centres(3, 4, 4).sigmoid() * 200).repeat_interleave(2, -1).repeat_interleave(2, -2)
    noise = torch.rand(len(y), 3, 8, 8, generator=generator) * 50
    return (coarse[y] + noise).to(torch.uint8)


def sequences(y: Tensor, generator: torch.Generator) -> Tensor:
    """Sequences of eight vectors of four numbers."""
    return _centres(8, 4)[y] + torch.randn(len(y), 8, 4, generator=generator) / 3


def tokens(y: Tensor, generator: torch.Generator) -> Tensor:
    """Eight tokens of a vocabulary of thirty; a class prefers six of them."""
    own = y.unsqueeze(1) * 6 + torch.randint(0, 6, (len(y), 8), generator=generator)
    other = torch.randint(0, 30, (len(y), 8), generator=generator)
    return torch.where(torch.rand(len(y), 8, generator=generator) < 0.8, own, other).float()


INPUTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "vectors": vectors,
    "images": images,
    "sequences": sequences,
    "tokens": tokens,
}


def stream(fed: str, batches: int, *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ten, with three classes in the first third and all five later."""
    generator = torch.Generator().manual_seed(seed)
    for batch in range(batches):
        classes = 3 if 3 * batch < batches else 5
        y = torch.randint(0, classes, (10,), generator=generator)
        yield INPUTS[fed](y, generator), y


# --- plain networks ------------------------------------------------------------------------------

_group = "plain"
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

# --- normalisation -------------------------------------------------------------------------------

_group = "normalisation"
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

# --- random numbers ------------------------------------------------------------------------------


class DropPath(nn.Module):
    """Stochastic depth, decided on the host for a whole batch."""

    def __init__(self, inner: nn.Module, rate: float) -> None:
        super().__init__()
        self.inner, self.rate = inner, rate

    def forward(self, x: Tensor) -> Tensor:
        """The sum, or the input alone."""
        if self.training and float(torch.rand(())) < self.rate:
            return x
        outputs: Tensor = x + self.inner(x)
        return outputs


_group = "random numbers"
zoo("Dropout", lambda: mlp(nn.Dropout(0.2)))
zoo("AlphaDropout", lambda: mlp(nn.AlphaDropout(0.2)))
zoo("Dropout2d", lambda: conv(nn.Dropout2d(0.2)), fed="images")
zoo(
    "functional dropout",
    lambda: Net(
        lambda m, x: m.head(F.dropout(m.a(x).relu(), 0.2, m.training)),
        a=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "dropout in eval mode too",
    lambda: Net(
        lambda m, x: m.head(F.dropout(m.a(x).relu(), 0.1, True)), a=nn.Linear(6, 16), head=head()
    ),
)
zoo("RReLU", lambda: mlp(nn.RReLU()))
zoo("stochastic depth", lambda: mlp(DropPath(nn.Linear(16, 16), 0.3)))
zoo(
    "Gumbel softmax",
    batches=120,
    make=lambda: Net(
        lambda m, x: m.head(m.a(x).relu() * F.gumbel_softmax(m.g(x), tau=2.0)),
        a=nn.Linear(6, 16),
        g=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "Gaussian noise",
    lambda: Net(
        lambda m, x: m.head((m.a(x) + 0.1 * torch.randn(len(x), 16)).relu()),
        a=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "reparametrised bottleneck",
    lambda: Net(
        lambda m, x: m.head(m.mean(x) + torch.randn_like(x[:, :1]) * (m.scale(x) - 3).exp()),
        mean=nn.Linear(6, 16),
        scale=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo(
    "FractionalMaxPool2d",
    lambda: conv(nn.FractionalMaxPool2d(2, output_size=3), area=9),
    fed="images",
)

# --- images --------------------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    """Channels weighted by a small network of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """The weighted channels."""
        outputs: Tensor = x * self.net(x.mean((2, 3)))[..., None, None]
        return outputs


def convnext() -> nn.Module:
    """A block of a ConvNeXt: depthwise convolution, LayerNorm over channels, two linear layers."""
    inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return Net(
        lambda m, x: x + m.scale * m.inner(m.depth(x).movedim(1, -1)).movedim(-1, 1),
        depth=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        inner=inner,
        scale=nn.Parameter(torch.full((8, 1, 1), 0.5)),
    )


def mbconv() -> nn.Module:
    """An inverted residual block with squeeze and excitation."""
    inner = nn.Sequential(
        *(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU()),
        *(SqueezeExcite(16), nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)),
    )
    return Net(lambda m, x: x + m.inner(x), inner=inner)


def mixer() -> nn.Module:
    """An MLP-Mixer over four patches."""
    return Net(
        lambda m, x: m.head(m.channels((h := m.patch(x).flatten(2)) + m.places(h)).mean(2)),
        patch=nn.Conv2d(3, 16, 4, stride=4),
        places=nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
        channels=nn.Conv1d(16, 16, 1),
        head=head(),
    )


def vit() -> nn.Module:
    """A small vision transformer with a class token and positions."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
    return Net(
        lambda m, x: m.head(
            m.layer(
                torch.cat([m.token.expand(len(x), 1, 16), m.patch(x).flatten(2).mT], 1) + m.place
            )[:, 0]
        ),
        patch=nn.Conv2d(3, 16, 4, stride=4),
        token=nn.Parameter(torch.zeros(1, 1, 16)),
        place=nn.Parameter(torch.randn(1, 5, 16) / 10),
        layer=layer,
        head=head(),
    )


def unet() -> nn.Module:
    """Down and up again, with a skip connection."""
    return Net(
        lambda m, x: m.head(
            torch.cat([h := m.a(x).relu(), m.up(m.down(h).relu())], 1).mean((2, 3))
        ),
        a=nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)),
        down=nn.Conv2d(8, 8, 2, stride=2),
        up=nn.ConvTranspose2d(8, 8, 2, stride=2),
        head=head(),
    )


def resnet() -> nn.Module:
    """This package's ResNet, narrow."""
    from ocar.models import make_model

    return make_model("slim-resnet18", image_shape=(3, 32, 32), classes=UNITS)


_group = "images"
IMAGES: dict[str, Any] = {"fed": "images"}
zoo("convolution", conv, **IMAGES)
zoo(
    "convolution without bias, BatchNorm, in-place ReLU",
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        head(288),
    ),
    **IMAGES,
)
zoo(
    "channels last", lambda: conv(nn.BatchNorm2d(8)).to(memory_format=torch.channels_last), **IMAGES
)
zoo(
    "depthwise separable",
    lambda: conv(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1), area=16),
    **IMAGES,
)
zoo(
    "dilated, strided, padded",
    lambda: conv(
        nn.Conv2d(8, 8, 3, stride=2, dilation=2, padding=2, padding_mode="reflect"), area=9
    ),
    **IMAGES,
)
zoo(
    "pooling of every kind",
    lambda: conv(
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        area=1,
    ),
    **IMAGES,
)
zoo("transposed convolution, skip connection", unet, batches=80, **IMAGES)
zoo("PixelShuffle", lambda: conv(nn.PixelShuffle(2), channels=2, area=144), **IMAGES)
zoo("squeeze and excitation", lambda: conv(SqueezeExcite(8)), **IMAGES)
zoo("ConvNeXt block", lambda: conv(convnext()), **IMAGES)
zoo("inverted residual block", lambda: conv(mbconv()), **IMAGES)
zoo("MLP-Mixer", mixer, batches=120, **IMAGES)
zoo("vision transformer", vit, batches=80, **IMAGES)
zoo(
    "Conv3d",
    lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 8, 3), nn.ReLU(), nn.Flatten(), head(288)
    ),
    **IMAGES,
)

# --- sequences and tokens ------------------------------------------------------------------------


def last(kind: type[nn.RNNBase], **options: Any) -> nn.Module:
    """A recurrent network whose last output goes into the head."""
    sides = 2 if options.get("bidirectional") else 1
    return Net(
        lambda m, x: m.head(m.rnn(x)[0][:, -1]),
        rnn=kind(4, 16 // sides, batch_first=True, **options),
        head=head(),
    )


def attention() -> nn.Module:
    """Attention of one's own, with a causal mask of bool."""
    return Net(
        lambda m, x: m.head(
            F.scaled_dot_product_attention(*m.qkv(x).chunk(3, -1), attn_mask=m.mask).mean(1)
        ),
        qkv=nn.Linear(4, 48),
        head=head(),
        mask=nn.Buffer(torch.ones(8, 8, dtype=torch.bool).tril()),
    )


def masked() -> nn.Module:
    """The same with a mask of −∞."""
    model = attention()
    model.mask = nn.Buffer(torch.full((8, 8), -torch.inf).triu(1))
    return model


def cell_by_cell() -> nn.Module:
    """A recurrent cell in a loop."""

    def run(m: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in x.unbind(1):
            state = m.cell(step, state)
        outputs: Tensor = m.head(state)
        return outputs

    return Net(run, cell=nn.GRUCell(4, 16), head=head())


def state_space() -> nn.Module:
    """A diagonal linear recurrence."""

    def run(m: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in m.inputs(x).unbind(1):
            state = m.decay.sigmoid() * state + step
        outputs: Tensor = m.head(state.tanh())
        return outputs

    return Net(run, inputs=nn.Linear(4, 16), decay=nn.Parameter(torch.ones(16)), head=head())


def rope() -> nn.Module:
    """Rotary positions, in a complex buffer that is not saved."""
    angles = torch.outer(torch.arange(8.0), 10.0 ** -torch.arange(2.0))

    def run(m: Any, x: Tensor) -> Tensor:
        turned = torch.view_as_real(torch.view_as_complex(x.unflatten(2, (2, 2))) * m.turns)
        outputs: Tensor = m.head(m.a(turned.flatten(2)).relu().mean(1))
        return outputs

    turns = nn.Buffer(torch.polar(torch.ones_like(angles), angles), persistent=False)
    return Net(run, a=nn.Linear(4, 16), head=head(), turns=turns)


def transformer(**options: Any) -> nn.Module:
    """Embeddings, positions, one layer of a transformer."""
    return Net(
        lambda m, x: m.head(m.layer(m.embed(x.long()) + m.place).mean(1)),
        embed=nn.Embedding(30, 16),
        place=nn.Parameter(torch.randn(8, 16) / 10),
        layer=nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options),
        head=head(),
    )


def tied(units: int = 30) -> nn.Module:
    """A language model's head, which is the embedding."""
    model = Net(
        lambda m, x: m.head(m.a(m.embed(x.long()).mean(1)).relu()),
        embed=nn.Embedding(units, 16),
        a=nn.Linear(16, 16),
        head=nn.Linear(16, units, bias=False),
    )
    model.head.weight = model.embed.weight  # type: ignore[union-attr]
    return model


_group = "sequences"
SEQUENCES: dict[str, Any] = {"fed": "sequences"}
TOKENS: dict[str, Any] = {"fed": "tokens"}
zoo("RNN", lambda: last(nn.RNN), **SEQUENCES)
zoo("LSTM", lambda: last(nn.LSTM), **SEQUENCES)
zoo("GRU, both ways", lambda: last(nn.GRU, bidirectional=True), **SEQUENCES)
zoo(
    "LSTM, two layers with dropout",
    batches=120,
    make=lambda: last(nn.LSTM, num_layers=2, dropout=0.2),
    **SEQUENCES,
)
zoo(
    "LSTM, time first",
    lambda: Net(
        lambda m, x: m.head(m.rnn(x.transpose(0, 1))[0][-1]), rnn=nn.LSTM(4, 16), head=head()
    ),
    **SEQUENCES,
)
zoo("recurrent cell in a loop", cell_by_cell, **SEQUENCES)
zoo("linear recurrence", state_space, **SEQUENCES)
zoo(
    "Conv1d",
    lambda: Net(lambda m, x: m.head(m.a(x.mT).relu().mean(2)), a=nn.Conv1d(4, 16, 3), head=head()),
    **SEQUENCES,
)
zoo(
    "dilated Conv1d, causal",
    lambda: Net(
        lambda m, x: m.head(m.b(F.pad(m.a(F.pad(x.mT, (1, 0))).relu(), (2, 0)))[..., -1]),
        a=nn.Conv1d(4, 16, 2),
        b=nn.Conv1d(16, 16, 2, dilation=2),
        head=head(),
    ),
    **SEQUENCES,
)
zoo(
    "MultiheadAttention",
    lambda: Net(
        lambda m, x: m.head(m.attend(h := m.a(x), h, h)[0].mean(1)),
        a=nn.Linear(4, 16),
        attend=nn.MultiheadAttention(16, 2, batch_first=True),
        head=head(),
    ),
    **SEQUENCES,
)
zoo(
    "attention with dropout of its own",
    lambda: Net(
        lambda m, x: m.head(m.attend(h := m.a(x), h, h, need_weights=False)[0].mean(1)),
        a=nn.Linear(4, 16),
        attend=nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True),
        head=head(),
    ),
    **SEQUENCES,
)
zoo("causal attention, mask of bool", attention, **SEQUENCES)
zoo(
    "causal attention, mask of −Inf",
    masked,
    refused="has NaN or Inf in mask, and a checkpoint refuses them",
    **SEQUENCES,
)
zoo("rotary positions", rope, **SEQUENCES)
zoo(
    "linear layer on time first",
    lambda: Net(
        lambda m, x: m.head(m.a(x.transpose(0, 1)).relu().mean(0)), a=nn.Linear(4, 16), head=head()
    ),
    **SEQUENCES,
)
zoo(
    "Embedding",
    lambda: Net(
        lambda m, x: m.head(m.embed(x.long()).mean(1)), embed=nn.Embedding(30, 16), head=head()
    ),
    **TOKENS,
)
zoo(
    "EmbeddingBag",
    lambda: Net(lambda m, x: m.head(m.embed(x.long())), embed=nn.EmbeddingBag(30, 16), head=head()),
    **TOKENS,
)
zoo("transformer", transformer, **TOKENS)
zoo("transformer without dropout", lambda: transformer(dropout=0.0), **TOKENS)
zoo(
    "sparse gradients",
    lambda: Net(
        lambda m, x: m.head(m.embed(x.long()).mean(1)),
        embed=nn.Embedding(30, 16, sparse=True),
        head=head(),
    ),
    **TOKENS,
)
zoo(
    "head tied to the embedding",
    tied,
    refused="cannot grow as classes appear: it shares its weight with layer 'embed'",
    **TOKENS,
)
zoo(
    "head tied to the embedding, classes given",
    tied,
    settings={"classes": range(30)},
    **TOKENS,
)

# --- heads ---------------------------------------------------------------------------------------


class CosineHead(nn.Linear):
    """A linear layer of unit vectors."""

    def forward(self, x: Tensor) -> Tensor:
        """Ten times the cosine."""
        return 10 * F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


class LoRA(nn.Module):
    """A frozen linear layer and a trained difference of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        outputs: Tensor = self.base(x) + self.up(self.down(x))
        return outputs


def named_twice() -> nn.Module:
    """A head that is also the last of a list."""
    layers = nn.ModuleList([nn.Linear(6, 16), head()])
    return Net(lambda m, x: m.head(m.layers[0](x).relu()), layers=layers, head=layers[1])


def with_spare(run: Callable[[Any, Tensor], Any], **parts: nn.Module) -> nn.Module:
    """A network with one more linear layer, registered last."""
    return Net(run, a=nn.Linear(6, 16), head=head(), **parts)


def after(*end: nn.Module) -> nn.Module:
    """A network with something after its head."""
    return nn.Sequential(*mlp(), *end)


_group = "heads"
zoo(
    "head of another class, a cosine",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), CosineHead(16, UNITS, bias=False)),
)
zoo("head under two names", named_twice)
zoo(
    "head that is not registered last",
    lambda: Net(lambda m, x: m.head(m.a(x).relu()), head=head(), a=nn.Linear(6, 16)),
    refused="must return shape (n, 16), the outputs of layer 'a'",
)
zoo(
    "head that is not registered last, named",
    lambda: Net(lambda m, x: m.head(m.a(x).relu()), head=head(), a=nn.Linear(6, 16)),
    settings={"head": "head"},
)
zoo(
    "unused linear layer of equal width",
    lambda: with_spare(lambda m, x: m.head(m.a(x).relu()), spare=head()),
    refused="Layer 'spare' is taken for the output layer, and Net does not call it",
)
zoo(
    "unused linear layer of equal width, head named",
    lambda: with_spare(lambda m, x: m.head(m.a(x).relu()), spare=head()),
    settings={"head": "head"},
)
zoo(
    "auxiliary output of equal width",
    lambda: with_spare(lambda m, x: (m.spare(h := m.a(x).relu()), m.head(h))[1], spare=head()),
    refused="The outputs of the model are not those of layer 'spare'",
)
zoo(
    "two heads, added",
    lambda: with_spare(lambda m, x: m.head(h := m.a(x).relu()) + m.other(h), other=head()),
    refused="cannot grow as classes appear: with twice as many units the model fails",
)
zoo(
    "head called twice",
    lambda: Net(
        lambda m, x: (m.head(m.a(x).relu()) + m.head(m.b(x).relu())) / 2,
        a=nn.Linear(6, 16),
        b=nn.Linear(6, 16),
        head=head(),
    ),
)
zoo("Softmax at the end", lambda: after(nn.Softmax(1)), refused="The model returns probabilities")
zoo("Sigmoid at the end", lambda: after(nn.Sigmoid()), refused="The model returns probabilities")
zoo("LogSoftmax at the end", lambda: after(nn.LogSoftmax(1)))
zoo(
    "temperature",
    lambda: Net(
        lambda m, x: m.inner(x) / m.heat, inner=mlp(), heat=nn.Parameter(torch.tensor(2.0))
    ),
)
zoo("logits capped by tanh", lambda: Net(lambda m, x: 30 * (m.inner(x) / 30).tanh(), inner=mlp()))
zoo(
    "a scale for each logit",
    lambda: Net(
        lambda m, x: m.inner(x) * m.scale, inner=mlp(), scale=nn.Parameter(torch.ones(UNITS))
    ),
    refused="cannot grow as classes appear: with twice as many units the model fails",
)
zoo(
    "a scale for each logit, classes given",
    lambda: Net(
        lambda m, x: m.inner(x) * m.scale,
        inner=nn.Sequential(nn.Linear(6, 16), nn.ReLU(), wide()),
        scale=nn.Parameter(torch.ones(5)),
    ),
    settings=FIXED,
)
zoo(
    "head under weight_norm",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.weight_norm(head())),
    refused="cannot grow as classes appear: its weight is computed from parametrizations",
)
zoo(
    "head under weight_norm, classes given",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.weight_norm(wide())),
    settings=FIXED,
)
zoo(
    "head under spectral_norm",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.spectral_norm(head())),
    refused="cannot grow as classes appear: its weight is computed from parametrizations",
)
zoo(
    "head under spectral_norm, classes given",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), parametrizations.spectral_norm(wide())),
    settings=FIXED,
)
zoo(
    "head under spectral_norm of old",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.utils.spectral_norm(head())),
    refused="cannot grow as classes appear: its weight is computed from weight_orig, weight_u",
)
zoo(
    "pruned head",
    lambda: nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), prune.l1_unstructured(head(), "weight", 0.3)
    ),
    refused="cannot grow as classes appear: its weight is computed from weight_mask, weight_orig",
)
zoo(
    "head under LoRA",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), LoRA(head())),
    refused="cannot grow as classes appear: with twice as many units the model fails",
)
zoo(
    "head under LoRA, classes given",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), LoRA(wide())),
    settings=FIXED,
)
zoo(
    "frozen head",
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), head().requires_grad_(False)),
    refused="The output layer '2' is frozen; it must train",
)
zoo(
    "convolution for a head",
    lambda: nn.Sequential(nn.Conv2d(3, UNITS, 8), nn.Flatten()),
    fed="images",
    refused="Sequential has no nn.Linear layer",
)

# --- shared, frozen and computed weights ---------------------------------------------------------


def shared_weight() -> nn.Module:
    """Two layers with one weight."""
    a, b = nn.Linear(16, 16), nn.Linear(16, 16)
    b.weight = a.weight
    return Net(
        lambda m, x: m.head(m.b(m.a(m.first(x)).relu()).relu()),
        first=nn.Linear(6, 16),
        a=a,
        b=b,
        head=head(),
    )


def frozen_norm() -> nn.Module:
    """A frozen convolution with its BatchNorm, as pretrained parts are used."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), head(288))
    model[:2].requires_grad_(False)
    return model


def pruned() -> nn.Module:
    """A network with a pruned first layer."""
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.3)
    return model


class Positive(nn.Module):
    """A parametrisation of one's own."""

    def forward(self, weight: Tensor) -> Tensor:
        """All positive."""
        return F.softplus(weight)


def positive() -> nn.Module:
    """A network with positive weights in its middle."""
    layer = nn.Linear(16, 16)
    parametrize.register_parametrization(layer, "bias", Positive())
    return mlp(layer)


def hypernetwork() -> nn.Module:
    """A layer whose weights another layer makes from the inputs."""
    return Net(
        lambda m, x: m.head(torch.einsum("ni,nio->no", x, m.hyper(x).view(-1, 6, 16)).tanh()),
        hyper=nn.Linear(6, 96),
        head=head(),
    )


_group = "weights"
zoo(
    "layer called twice",
    lambda: Net(
        lambda m, x: m.head(m.b(m.b(m.a(x).relu()).relu())),
        a=nn.Linear(6, 16),
        b=nn.Linear(16, 16),
        head=head(),
    ),
)
zoo("two layers that share a weight", shared_weight)
zoo(
    "frozen first layer",
    lambda: nn.Sequential(nn.Linear(6, 16).requires_grad_(False), nn.ReLU(), head()),
)
zoo("frozen convolution and BatchNorm", frozen_norm, fed="images")
zoo(
    "adapter behind a frozen layer",
    lambda: nn.Sequential(
        nn.Linear(6, 16).requires_grad_(False),
        nn.ReLU(),
        nn.Linear(16, 4),
        nn.ReLU(),
        nn.Linear(4, 16),
        head(),
    ),
)
zoo("LoRA in the middle", lambda: nn.Sequential(LoRA(nn.Linear(6, 16)), nn.ReLU(), head()))
zoo("weight_norm in the middle", lambda: mlp(parametrizations.weight_norm(nn.Linear(16, 16))))
zoo("spectral_norm in the middle", lambda: mlp(parametrizations.spectral_norm(nn.Linear(16, 16))))
zoo("spectral_norm of old in the middle", lambda: mlp(nn.utils.spectral_norm(nn.Linear(16, 16))))
zoo("orthogonal weights in the middle", lambda: mlp(parametrizations.orthogonal(nn.Linear(16, 16))))
zoo("parametrisation of one's own", positive)
zoo("pruned layer", pruned)
zoo("hypernetwork", hypernetwork)

# --- control flow, wrappers, hooks ---------------------------------------------------------------


class Straight(torch.autograd.Function):
    """Signs forward, the identity backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The signs."""
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is stored."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        """The gradient as it is."""
        return grad


def routed() -> nn.Module:
    """Each sample goes through the expert with the largest score."""

    def run(m: Any, x: Tensor) -> Tensor:
        scores = m.gate(x).softmax(1)
        hidden = torch.stack([expert(x) for expert in m.experts], 1).relu()
        chosen = scores.argmax(1)
        rows = torch.arange(len(x))
        outputs: Tensor = m.head(hidden[rows, chosen] * scores[rows, chosen, None])
        return outputs

    experts = nn.ModuleList(nn.Linear(6, 16) for _ in range(3))
    return Net(run, gate=nn.Linear(6, 3), experts=experts, head=head())


def early_exit() -> nn.Module:
    """A second layer only for batches with large inputs."""

    def run(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x).relu()
        if float(x.abs().mean()) > 1.4:
            hidden = m.b(hidden).relu()
        outputs: Tensor = m.head(hidden)
        return outputs

    return Net(run, a=nn.Linear(6, 16), b=nn.Linear(16, 16), head=head())


class DataParallelLike(nn.Module):
    """A wrapper that splits the batch, calls the module on each part and joins the outputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all parts."""
        return torch.cat([self.module(part) for part in x.chunk(2)])


def hooked(add: Callable[[nn.Sequential], object]) -> nn.Module:
    """A network with a hook."""
    model = mlp()
    add(model)
    return model


def compiled(model: nn.Module) -> nn.Module:
    """By a backend that needs no compiler of C++."""
    made: Any = torch.compile(model, backend="aot_eager")
    return made  # type: ignore[no-any-return]


def compiled_in_place() -> nn.Module:
    """The same, by ``model.compile()``."""
    model = mlp()
    model.compile(backend="aot_eager")
    return model


def counting(**options: Any) -> nn.Module:
    """A running mean of its own, in a buffer that decides the outputs."""

    def run(m: Any, x: Tensor) -> Tensor:
        if m.training:
            m.mean.lerp_(x.detach().mean(0), 0.1)
            m.calls.add_(1)
        outputs: Tensor = m.inner(x - m.mean)
        return outputs

    mean, calls = (
        nn.Buffer(torch.zeros(6), **options),
        nn.Buffer(torch.zeros((), dtype=torch.int64)),
    )
    return Net(run, inner=mlp(), mean=mean, calls=calls)


_group = "control flow, wrappers and hooks"
zoo(
    "mixture of experts",
    lambda: Net(
        lambda m, x: m.head(
            (m.gate(x).softmax(1).unsqueeze(2) * m.experts(x).view(-1, 3, 16)).sum(1).relu()
        ),
        gate=nn.Linear(6, 3),
        experts=nn.Linear(6, 48),
        head=head(),
    ),
)
zoo("experts, one for each sample", routed)
zoo("a layer that some batches skip", early_exit)
zoo(
    "straight-through estimator",
    lambda: Net(lambda m, x: m.head(Straight.apply(m.a(x))), a=nn.Linear(6, 16), head=head()),
)
zoo(
    "gradient checkpointing",
    lambda: Net(
        lambda m, x: m.head(checkpoint(m.inner, x, use_reentrant=False)),
        inner=nn.Sequential(nn.Linear(6, 16), nn.ReLU()),
        head=head(),
    ),
)
zoo(
    "einsum on parameters",
    lambda: Net(
        lambda m, x: m.head(torch.einsum("ni,ijo->no", x, m.w).relu()),
        w=nn.Parameter(torch.randn(6, 2, 16) / 4),
        head=head(),
    ),
)
zoo("DataParallel", lambda: nn.DataParallel(mlp()))
zoo(
    "wrapper that splits the batch",
    lambda: DataParallelLike(mlp()),
    ocar="Its curvature needs the samples in the first dimension",
)
zoo(
    "forward hook",
    lambda: hooked(lambda m: m[0].register_forward_hook(lambda module, args, out: out * 1.1)),
)
zoo(
    "forward pre-hook",
    lambda: hooked(lambda m: m[2].register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))),
)
zoo(
    "backward hook",
    lambda: hooked(
        lambda m: m[1].register_full_backward_hook(lambda module, grads, outer: (grads[0] * 0.5,))
    ),
)
zoo(
    "hook on a gradient",
    lambda: hooked(lambda m: m[0].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))),
)
zoo(
    "replaced forward method",
    lambda: hooked(lambda m: setattr(m[1], "forward", lambda x: x.tanh())),
)
zoo("buffers that change", counting)
zoo("buffers that change and are not saved by PyTorch", lambda: counting(persistent=False))
zoo("torch.compile", lambda: compiled(mlp()), ocar="is compiled")
zoo("model.compile()", compiled_in_place, ocar="is compiled")

# --- what they return ----------------------------------------------------------------------------


class ExtraState(nn.Sequential):
    """Keeps more in its ``state_dict`` than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        """A dictionary."""
        return {"version": 2}

    def set_extra_state(self, state: Any) -> None:
        """Ignored."""


_group = "outputs"
zoo(
    "returns a tuple",
    lambda: Net(lambda m, x: (m.inner(x), x), inner=mlp()),
    refused="as a tensor; it returned a tuple",
)
zoo(
    "returns a dict",
    lambda: Net(lambda m, x: {"logits": m.inner(x)}, inner=mlp()),
    refused="as a tensor; it returned a dict",
)
zoo(
    "wrapper that picks the logits",
    lambda: Net(
        lambda m, x: m.inner(x)["logits"], inner=Net(lambda m, x: {"logits": m.net(x)}, net=mlp())
    ),
)
zoo(
    "one dimension too many",
    lambda: Net(lambda m, x: m.inner(x).unsqueeze(1), inner=mlp()),
    refused="must return shape (n, 4), the outputs of layer 'inner.2'; it returned (7, 1, 4)",
)
zoo(
    "an output for each place",
    lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), head()),
    fed="sequences",
    refused="it returned (7, 8, 4) for 7 samples",
)
zoo(
    "a mean of outputs for each place",
    lambda: Net(
        lambda m, x: m.inner(x).mean(1), inner=nn.Sequential(nn.Linear(4, 16), nn.ReLU(), head())
    ),
    fed="sequences",
)

# --- types and places of numbers -----------------------------------------------------------------


def mixed() -> nn.Module:
    """A body in bfloat16 and a head in float32."""
    return Net(
        lambda m, x: m.head(m.body(x).float()),
        body=nn.Sequential(nn.Linear(6, 16), nn.ReLU()).bfloat16(),
        head=head(),
    )


def autocast() -> nn.Module:
    """A body that rounds to bfloat16 inside."""

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = m.a(x).relu()
        outputs: Tensor = m.head(hidden.float())
        return outputs

    return Net(run, a=nn.Linear(6, 16), head=head())


def initialised() -> nn.Module:
    """A lazy network that has seen a batch."""
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(UNITS))
    model(torch.zeros(2, 6))
    return model


def made_in_inference_mode() -> nn.Module:
    """Its parameters can never learn."""
    with torch.inference_mode():
        return mlp()


def on_meta() -> nn.Module:
    """A network without numbers."""
    with torch.device("meta"):
        return mlp()


_group = "types and devices"
zoo("float64", lambda: mlp().double())
zoo("bfloat16", lambda: mlp().bfloat16())
zoo("float16", lambda: mlp().half())
zoo("bfloat16 with a float32 head", mixed)
zoo("autocast inside", autocast)
zoo(
    "complex weights",
    lambda: Net(
        lambda m, x: m.head((x.to(m.w.dtype) @ m.w).abs()),
        w=nn.Parameter(torch.randn(6, 16, dtype=torch.complex64)),
        head=head(),
    ),
    refused="Net could not be saved: 'w' is of type torch.complex64",
)
zoo(
    "sparse buffer",
    lambda: Net(lambda m, x: m.inner(x), inner=mlp(), table=nn.Buffer(torch.eye(3).to_sparse())),
    refused="Net could not be saved: 'table' is of layout torch.sparse_coo",
)
zoo(
    "extra state",
    lambda: ExtraState(*mlp()),
    refused="ExtraState could not be saved: '_extra_state' is a dict, not a tensor",
)
zoo(
    "lazy",
    lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(UNITS)),
    refused="Sequential is lazy: '0.weight' has no shape yet",
)
zoo("lazy, after a batch", initialised)
zoo(
    "made in inference mode",
    made_in_inference_mode,
    refused="'0.weight' was made inside torch.inference_mode()",
)
zoo("on the meta device", on_meta, refused="Sequential is on meta")
zoo(
    "partly on the meta device",
    lambda: nn.Sequential(nn.Linear(6, 16, device="meta"), nn.ReLU(), head()),
    refused="Sequential is on cpu and meta",
)
zoo(
    "nothing to train",
    lambda: mlp().requires_grad_(False),
    refused="Sequential has no parameter that requires a gradient",
)
