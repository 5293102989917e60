"""Hyper-parameters selected for each benchmark and method.

* Split-CIFAR100, Split-TinyImageNet: the settings of the published tables. OCM and
  OnPro have the settings of their own code, which was written for a wider network.
* Split-MNIST, split-digits: our own, found by the search stored in ``results/``. On
  split-digits some methods have the best of a few runs with seed 0, by validation
  accuracy over time (AAA): ER + LwF, MIR and RAR of 6 runs each, over the learning
  rate and one more setting; DER and DER++ of 10 to 16, over the learning rate, α and
  β; OCAR-DER++ of as many, over the weight of new estimates too; GDumb of 4 learning
  rates, with AAA over the ends of tasks; A-GEM, LPR, EWC and NGD of 4, 10, 6 and 10,
  over the learning rate and the strength of their constraint; ER-ACE of 8, over the
  learning rate and α; OCAR-ACE of 6, over the learning rate and the weight of new
  estimates; SCR, OCM and OnPro of 4, 6 and 5, over the learning rate and the
  temperature or the replay batch, evaluated every 5 batches.
* PACS: the best of 16 trials of ``ocar tune pacs METHOD`` for each method.
* convex: the best of 100 trials of ``ocar tune convex METHOD`` for each method, by
  L_p + L_s with seed 0. The full Fisher is the paper's. EWC has the explicit penalty;
  lower sums were seen with the implicit one.
* OCAR with slow weights has the numbers of OCAR everywhere, and is not told how many classes are
  new. It replays 20 samples, and 10 where the memory holds 100. On Split-TinyImageNet it takes
  three passes over a batch, as on the other benchmarks, in place of nine.

Settings that a benchmark itself fixes, such as the size of the memory, are in
:mod:`ocar.streams.benchmarks`.
"""

from __future__ import annotations

Preset = dict[str, float | str | tuple[int, ...] | None]

_SCR: Preset = {
    "base_temperature": 0.07,
    "unit_length": "features",
    "views": "survey",
    "means": "averaged",
    "replay_batch": 118,
    "partial_replay": False,
    "augment": None,
}
"""The survey's code."""

_ROTATED: Preset = {
    "memory_kind": "reservoir",
    "replay_batch": 64,
    "passes": 1,
    "stretches": "boundary",
    "augment": None,
}
"""The code of OCM and OnPro."""

_OCAR: Preset = {"factor_scale": "outputs", "head_size": "labels"}
"""The code of OCAR's authors."""

PRESETS: dict[str, dict[str, Preset]] = {
    "split-cifar100": {
        "er": {"lr": 0.0598729},
        "er-ace": {"lr": 0.0248415, "alpha": 0.451435, "replay": "disjoint"},
        "er-lwf": {"lr": 0.0232479, "alpha": 0.51886, "temperature": 1.22282},
        "mir": {"lr": 0.0140011, "subsample": 128, "replay": "disjoint"},
        "rar": {
            "lr": 0.0277498,
            "beta": 0.671416,
            "decay": 0.834112,
            "epsilon": 0.0528097,
            "iterations": 2,
            "inner_lr": 1.22684e-4,
        },
        "scr": {"lr": 0.0817695, "temperature": 0.175323, **_SCR},
        "ocm": {"lr": 0.001, **_ROTATED},
        "onpro": {"lr": 0.0005, **_ROTATED},
        "agem": {"lr": 0.00201134, "reference": 200, "replay": "disjoint"},
        "lpr": {"lr": 0.1, "omega0": 4.0, "omega_power": 2.0, "refresh_every": 30},
        "der++": {
            "lr": 0.0135139,
            "alpha": 1.65518e-7,
            "beta": 1.73666,
            "replay": "disjoint",
            "classes": tuple(range(100)),
        },
        "gdumb": {"lr": 0.1, "epochs": 100, "train_batch": 128},
        "ocar-ace": {
            "lr": 4.30163e-4,
            "tau_step": 5.69971e-10,
            "ema": 0.0567373,
            "alpha": 0.591353,
            "replay": "disjoint",
            "n_new": 5,
            **_OCAR,
        },
        "ocar-der++": {
            "lr": 4.33138e-4,
            "tau_step": 1.12728e-8,
            "ema": 0.183601,
            "alpha": 4.38006e-4,
            "beta": 1.87553,
            "replay": "disjoint",
            "classes": tuple(range(100)),
            "n_new": 5,
            **_OCAR,
        },
        "ocar": {"lr": 7.03388e-4, "tau_step": 3.67164e-8, "ema": 0.138513, "n_new": 5, **_OCAR},
    },
    "split-tinyimagenet": {
        "er": {"lr": 0.0251527},
        "er-ace": {"lr": 0.03124, "alpha": 0.406266, "replay": "disjoint"},
        "er-lwf": {"lr": 0.0764668, "alpha": 0.465416, "temperature": 1.7707},
        "mir": {"lr": 0.00796748, "subsample": 128, "replay": "disjoint"},
        "rar": {
            "lr": 0.0474317,
            "beta": 0.476697,
            "decay": 0.978831,
            "epsilon": 0.077472,
            "iterations": 5,
            "inner_lr": 0.0106502,
        },
        "scr": {"lr": 0.0300544, "temperature": 0.408607, **_SCR},
        "ocm": {"lr": 0.001, **_ROTATED},
        "onpro": {"lr": 0.0005, **_ROTATED},
        "lpr": {"lr": 0.01, "omega0": 0.25, "omega_power": 2.0, "refresh_every": 90},
        "der++": {
            "lr": 0.0130322,
            "alpha": 1.07834,
            "beta": 5.01118,
            "replay": "disjoint",
            "classes": tuple(range(200)),
        },
        "gdumb": {"lr": 0.1, "epochs": 100, "train_batch": 128},
        "ocar-ace": {
            "lr": 2.85818e-4,
            "tau_step": 9.96476e-9,
            "ema": 0.0474223,
            "alpha": 0.648525,
            "replay": "disjoint",
            "n_new": 10,
            **_OCAR,
        },
        "ocar": {
            "lr": 1.292762e-3,
            "tau_step": 1.05697e-8,
            "ema": 0.0239164,
            "n_new": 10,
            **_OCAR,
        },
    },
    "clear": {
        "lpr": {
            "lr": 0.01,
            "omega0": 1.0,
            "omega_power": 1.0,
            "refresh_every": 100,
            "refresh_samples": 100,
        }
    },
    "pacs": {
        "er": {"lr": 0.01512253948618756},
        "lpr": {
            "lr": 0.044283973005522004,
            "omega0": 8.130386730364624,
            "omega_power": 1.0,
            "refresh_every": 30,
        },
        "ocar": {
            "lr": 0.00015498711330730534,
            "tau_step": 4.244503198437277e-08,
            "ema": 0.0007484140168711166,
            "increments": "domains",
        },
    },
    "convex": {
        "er": {"lr": 0.0618569},
        "ewc": {
            "lr": 0.0630578,
            "strength": 0.438237,
            "ema": 0.36369,
            "structure": "full",
            "fisher": "exact",
        },
        "ngd": {
            "lr": 0.107334,
            "damping": 0.0738833,
            "ema": 0.0178317,
            "curvature": "dense",
            "fisher": "exact",
        },
        "ocar": {
            "lr": 0.310309,
            "tau": 0.00109071,
            "tau_step": 0.00153978,
            "ema": 0.141582,
            "replay_weight": "one-plus-lambda",
            "increments": "domains",
            "curvature": "dense",
            "fisher": "exact",
        },
    },
    "split-mnist": {
        "er": {"lr": 0.00156767},
        "ocar": {"lr": 1.0948e-4, "tau_step": 6.0666e-7, "ema": 0.010392, "n_new": 2},
    },
    "split-digits": {
        "er": {"lr": 0.0821246},
        "er-ace": {"lr": 0.4, "alpha": 0.3},
        "er-lwf": {"lr": 0.2, "alpha": 1.0, "temperature": 2.0},
        "mir": {"lr": 0.2, "subsample": 50, "exclude": "none"},
        "rar": {"lr": 0.2, "beta": 0.4, "epsilon": 0.0314, "iterations": 2},
        "der": {"lr": 0.2, "alpha": 1.0, "classes": tuple(range(10))},
        "der++": {"lr": 0.1, "alpha": 0.3, "beta": 2.0, "classes": tuple(range(10))},
        "gdumb": {"lr": 1.0},
        "scr": {"lr": 0.1, "temperature": 0.2, "replay_batch": 50},
        "ocm": {"lr": 0.01, "replay_batch": 40, "memory_kind": "class-balanced"},
        "onpro": {"lr": 0.01, "replay_batch": 40, "memory_kind": "class-balanced"},
        "agem": {"lr": 0.1},
        "lpr": {"lr": 0.8, "omega0": 1.0, "refresh_every": 30},
        "ewc": {"lr": 0.4, "strength": 1.0, "ema": 0.1},
        "ngd": {"lr": 0.15, "damping": 0.15, "ema": 0.05},
        "ocar-ace": {"lr": 0.15, "tau_step": 4e-8, "ema": 0.05, "n_new": 2},
        "ocar-der++": {
            "lr": 0.02,
            "tau_step": 4e-8,
            "ema": 0.05,
            "alpha": 0.1,
            "beta": 0.5,
            "classes": tuple(range(10)),
            "n_new": 2,
        },
        "ocar": {"lr": 0.0600725, "tau_step": 4.0667e-8, "ema": 0.00455667, "n_new": 2},
    },
}
"""Settings by benchmark, then by method."""

_FEW = ("split-mnist", "split-digits")
"""Benchmarks with a memory of 100 samples: 20 replayed ones would repeat too often."""

for _benchmark, _settings in PRESETS.items():
    if "ocar" in _settings:
        _own = _settings["ocar"].items()
        _kept = {name: value for name, value in _own if name not in {"n_new", *_OCAR}}
        _replay = 10 if _benchmark in _FEW else 20
        _settings["ocar-slow"] = {**_kept, "replay_batch": _replay, "closed_form_head": None}
PRESETS["split-tinyimagenet"]["ocar-slow"]["passes"] = 3
