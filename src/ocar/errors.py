"""The errors that the package raises, one class a cause.

Every message says what was wrong, what was given and what is allowed. All errors derive from
:class:`OcarError`, so one ``except`` catches them, and from the built-in error that fits.
"""


class OcarError(Exception):
    """Base of every error that the package raises on purpose."""


class ConfigError(OcarError, ValueError):
    """A hyper-parameter or option is out of its range."""


class MissingSettingError(ConfigError):
    """Settings without a default were not given; ``names`` are theirs."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class InputError(OcarError, ValueError):
    """A batch cannot be learned from or predicted on."""


class ModelError(OcarError, ValueError):
    """A model cannot be used: no parameters, no linear head, shared layers."""


class NumericalError(OcarError, ArithmeticError):
    """A computation has no finite result, even after damping and in double precision."""


class DataError(OcarError, ValueError):
    """A data file is missing, damaged or of the wrong kind."""


class CheckpointError(OcarError, ValueError):
    """A checkpoint cannot be read or does not belong to this model."""


class CheckpointWarning(UserWarning):
    """A checkpoint was refused, and the one before it was used instead."""


class RunError(OcarError, RuntimeError):
    """A run folder is in use by another process, damaged, or of another configuration."""


class RankError(OcarError, RuntimeError):
    """The ranks that learn together cannot go on; the message names the rank that is the cause."""


class RankLeftError(RankError):
    """A rank has stopped on purpose, see :meth:`ocar.Ranks.leave`."""


class MissingPackageError(OcarError, ImportError):
    """An optional package is missing; the message gives the command that installs it."""
