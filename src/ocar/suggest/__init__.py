"""Settings for one's own recorded stream: :func:`suggest`."""

from ocar.suggest.search import Trial
from ocar.suggest.suggestion import Suggestion, suggest

__all__ = ["Suggestion", "Trial", "suggest"]
