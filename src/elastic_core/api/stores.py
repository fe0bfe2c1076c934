"""Names for a `CoordinationStore`: its records and errors, those of `WaitBudget`, and addresses.

`CoordinationStore` and `WaitBudget` are in `elastic_core.api`.
"""

from elastic_core.errors import BackendError as BackendError
from elastic_core.errors import BackendRefusedError as BackendRefusedError
from elastic_core.errors import BackendUnavailableError as BackendUnavailableError
from elastic_core.errors import OutcomeUnknownError as OutcomeUnknownError
from elastic_core.errors import WaitCancelledError as WaitCancelledError
from elastic_core.errors import WaitExpiredError as WaitExpiredError
from elastic_core.rendezvous.address import is_ip as is_ip
from elastic_core.rendezvous.address import is_loopback as is_loopback
from elastic_core.rendezvous.address import route_source as route_source
from elastic_core.rendezvous.member.documents import STORE_FORMAT as STORE_FORMAT
from elastic_core.rendezvous.member.leader import STORE_KEEP_S as STORE_KEEP_S
from elastic_core.rendezvous.store import CONTROL_KEY as CONTROL_KEY
from elastic_core.rendezvous.store import ROUND_KEY as ROUND_KEY
from elastic_core.rendezvous.store import Document as Document
from elastic_core.rendezvous.store import Member as Member
from elastic_core.rendezvous.store import Members as Members
from elastic_core.rendezvous.store import Renewal as Renewal
from elastic_core.rendezvous.store import Revisions as Revisions
from elastic_core.rendezvous.store import Seat as Seat
from elastic_core.rendezvous.store import Survey as Survey
from elastic_core.rendezvous.store import Swapped as Swapped
from elastic_core.rendezvous.store import Topic as Topic
from elastic_core.rendezvous.store import Watched as Watched
from elastic_core.rendezvous.store import compare as compare
from elastic_core.rendezvous.store import own_content as own_content
