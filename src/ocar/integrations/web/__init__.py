"""A learner behind HTTP, as ``ocar serve`` runs it: FastAPI in front of a service."""
