"""Names for hooks that export a run, answer requests to the agent, or coordinate the workers of all nodes."""

from elastic_core.hooks.arguments import checks_arguments as checks_arguments
from elastic_core.hooks.handle import Offer as Offer
from elastic_core.moments import Agreed as Agreed
from elastic_core.moments import AnswersGathered as AnswersGathered
from elastic_core.moments import Concluded as Concluded
from elastic_core.moments import NodesAsked as NodesAsked
from elastic_core.moments import StopPlanned as StopPlanned
from elastic_core.reports import Absence as Absence
from elastic_core.reports import AgentChannel as AgentChannel
from elastic_core.reports import Answer as Answer
from elastic_core.reports import ChosenOption as ChosenOption
from elastic_core.reports import Phase as Phase
from elastic_core.reports import RunEvent as RunEvent
