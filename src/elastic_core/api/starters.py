"""Names for hooks that start workers themselves, or host the server at MASTER_PORT."""

from elastic_core.hooks.launches import fault_of_variable as fault_of_variable
from elastic_core.hooks.master_server import MasterServer as MasterServer
from elastic_core.starters import AgentLoop as AgentLoop
from elastic_core.starters import LeavingWorker as LeavingWorker
from elastic_core.starters import StartedProcess as StartedProcess
from elastic_core.starters import WorkerStart as WorkerStart
from elastic_core.starters import WorkerStarter as WorkerStarter
