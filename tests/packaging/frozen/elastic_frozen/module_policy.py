"""A policy as a module with hookimpls."""

from elastic_core.api import FailureHandler, PolicySettings, hookimpl
from elastic_frozen.policy import Careful

api_version = 1
options = Careful.options


@hookimpl
def elastic_make_failure_handler(settings: PolicySettings) -> FailureHandler:
    """Make the policy of the other module."""
    return Careful(settings)
