"""A few steps of OCAR with the installed package: does the wheel hold all that it needs?"""

import torch
from torch import nn

import ocar

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
learner = ocar.OCAR(model, lr=1e-2, tau_step=1e-6, ema=0.1, memory=20)
generator = torch.Generator().manual_seed(0)
for _ in range(3):
    x = torch.randn(10, 8, generator=generator)
    y = torch.randint(4, (10,), generator=generator)
    learner.learn(x, y)
prediction = learner.predict(x)
assert len(prediction) == len(x)
assert prediction.isfinite().all()
print(f"ocar works as installed in {ocar.__file__}")
