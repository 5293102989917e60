"""A learner in service: what it acknowledges it keeps, whatever happens to the process.

:class:`Service` joins a learner, its checkpoint, a journal and a lock. It knows no network: a web
framework hands it batches and questions, as :mod:`ocar.integrations.web` does with FastAPI.
"""

from ocar.service.journal import Journal, Repaired
from ocar.service.offline import repair, roll_back
from ocar.service.service import Accepted, Refused, Service

__all__ = ["Accepted", "Journal", "Refused", "Repaired", "Service", "repair", "roll_back"]
