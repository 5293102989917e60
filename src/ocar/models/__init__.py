"""Networks whose last layer is an ``nn.Linear`` called ``head``, fed by ``features``."""

from ocar.models.latent import LatentReplay
from ocar.models.mlp import MLP, LinearModel
from ocar.models.registry import MODELS, make_model
from ocar.models.resnet import BasicBlock, ResNet, ResNet18, SlimResNet18
from ocar.models.transformer import TextTransformer

__all__ = [
    "MLP",
    "MODELS",
    "BasicBlock",
    "LatentReplay",
    "LinearModel",
    "ResNet",
    "ResNet18",
    "SlimResNet18",
    "TextTransformer",
    "make_model",
]
