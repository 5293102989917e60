"""What holds for all tests."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# The helpers of the tests import by plain name whatever pytest's import mode is.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# A busy machine is not a failure.
settings.register_profile("ocar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ocar")
