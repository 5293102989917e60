"""Hyper-parameters selected for a benchmark, by benchmark and method.

Those for Split-CIFAR100 and Split-TinyImageNet are the ones with which the
published tables were made; those for Split-MNIST and split-digits are our own,
found by the search kept in ``results/``. What a benchmark itself fixes, such as
the size of the memory, stands in :mod:`ocar.streams.benchmarks`.
"""

from __future__ import annotations

PRESETS: dict[str, dict[str, dict[str, float]]] = {
    "split-cifar100": {
        "er": {"lr": 0.0598729},
        "er-ace": {"lr": 0.0248415, "alpha": 0.451435},
        "ocar-ace": {
            "lr": 4.30163e-4,
            "tau_step": 5.69971e-10,
            "ema": 0.0567373,
            "alpha": 0.591353,
            "n_new": 5,
        },
        "ocar": {
            "lr": 7.03388e-4,
            "tau_step": 3.67164e-8,
            "ema": 0.138513,
            "n_new": 5,
        },
    },
    "split-tinyimagenet": {
        "er": {"lr": 0.0251527},
        "er-ace": {"lr": 0.03124, "alpha": 0.406266},
        "ocar-ace": {
            "lr": 2.85818e-4,
            "tau_step": 9.96476e-9,
            "ema": 0.0474223,
            "alpha": 0.648525,
            "n_new": 10,
        },
        "ocar": {
            "lr": 1.292762e-3,
            "tau_step": 1.05697e-8,
            "ema": 0.0239164,
            "n_new": 10,
        },
    },
    "split-mnist": {
        "er": {"lr": 0.00156767},
        "ocar": {"lr": 1.0948e-4, "tau_step": 6.0666e-7, "ema": 0.010392, "n_new": 2},
    },
    "split-digits": {
        "er": {"lr": 0.0821246},
        "ocar": {"lr": 0.0600725, "tau_step": 4.0667e-8, "ema": 0.00455667, "n_new": 2},
    },
}
"""Settings by benchmark, then by method."""
