"""More names for a `RendezvousHandler`: changes of a round, capabilities and errors.

`RendezvousHandler` is in `elastic_core.api`. Its `watch` returns the changes, such as `RendezvousClosed`; its
`next_rendezvous` raises the errors, such as `RendezvousClosedError`.
"""

from elastic_core.errors import RendezvousClosedError as RendezvousClosedError
from elastic_core.errors import RendezvousConnectionError as RendezvousConnectionError
from elastic_core.errors import RendezvousError as RendezvousError
from elastic_core.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
from elastic_core.errors import RendezvousStateError as RendezvousStateError
from elastic_core.errors import RendezvousTimeoutError as RendezvousTimeoutError
from elastic_core.plugins.torch_side import torch_handler as torch_handler
from elastic_core.rendezvous.handler import AgentServices as AgentServices
from elastic_core.reports import NodeReport as NodeReport
from elastic_core.types import Capability as Capability
from elastic_core.types import Decided as Decided
from elastic_core.types import MemberLost as MemberLost
from elastic_core.types import NodesWaiting as NodesWaiting
from elastic_core.types import RendezvousClosed as RendezvousClosed
from elastic_core.types import Resumed as Resumed
from elastic_core.types import RosterMember as RosterMember
from elastic_core.types import RoundChange as RoundChange
from elastic_core.types import RoundEnded as RoundEnded
from elastic_core.types import StopOrdered as StopOrdered
from elastic_core.types import Suspended as Suspended
from elastic_core.types import Undecided as Undecided
