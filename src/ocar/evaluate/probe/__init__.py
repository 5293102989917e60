"""Probed accuracy: how good a linear classifier could be on the features as they are now.

The features are what goes into the head of a model in eval mode. On those of the training data,
seen in a few augmented passes, a multinomial logistic regression is fitted; its accuracy on the
test data is the probed accuracy. Fitting is scikit-learn's ``LogisticRegression`` after its
``StandardScaler``, the same objective to the same tolerance, but on the features' device.
"""

from ocar.evaluate.probe.accuracy import check_probe, probe_accuracy, probe_stream
from ocar.evaluate.probe.logistic import LinearProbe, fit_probe, logistic_objective, standardization

__all__ = [
    "LinearProbe",
    "check_probe",
    "fit_probe",
    "logistic_objective",
    "probe_accuracy",
    "probe_stream",
    "standardization",
]
