"""Names for hooks that export a run, answer requests to the agent, or coordinate the workers of all nodes."""

from elastic_core.hooks.arguments import checks_arguments as checks_arguments
from elastic_core.hooks.handle import Offer as Offer
from elastic_core.moments import Agreed as Agreed
from elastic_core.moments import StepsAsked as StepsAsked
from elastic_core.moments import StepsSeen as StepsSeen
from elastic_core.moments import StopPlanned as StopPlanned
from elastic_core.reports import Absence as Absence
from elastic_core.reports import AgentChannel as AgentChannel
from elastic_core.reports import Answer as Answer
from elastic_core.reports import NodeSteps as NodeSteps
from elastic_core.reports import Phase as Phase
from elastic_core.reports import RankStep as RankStep
from elastic_core.reports import RunEvent as RunEvent
from elastic_core.reports import RunSteps as RunSteps
