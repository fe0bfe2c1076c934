"""Errors of the training state, one line each."""

from elastic_core.api import ElasticError


class StateError(ElasticError):
    """The training state can't be kept, or can't be brought back as it was. Whole copies are unchanged."""
