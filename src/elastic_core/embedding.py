"""The API for programs that run an agent in their own process: options as settings, a run, and its outcome.

For custom launchers and for elastic-torchrun; plugins need only `elastic_core.api`. It may change in each release of
the core. Re-exports only; `run_job` is imported at its first use, because it imports the whole agent.
"""

import typing

from elastic_core.agent.port import HeldPort as HeldPort
from elastic_core.cli.arguments import read_arguments as read_arguments
from elastic_core.cli.completion_command import completion_script as completion_script
from elastic_core.cli.main import elastic_process as elastic_process
from elastic_core.errors import nearest as nearest
from elastic_core.history import remembered as remembered
from elastic_core.launcher.injected import NOTHING as NOTHING
from elastic_core.launcher.injected import Injected as Injected
from elastic_core.launcher.logs import limited_plan as limited_plan
from elastic_core.launcher.outcome import RunOutcome as RunOutcome
from elastic_core.logger import Logger as Logger
from elastic_core.messages import AnnounceDeparture as AnnounceDeparture
from elastic_core.messages import DrainOrdered as DrainOrdered
from elastic_core.messages import JoinRendezvous as JoinRendezvous
from elastic_core.messages import LeaveRendezvous as LeaveRendezvous
from elastic_core.messages import PrintLine as PrintLine
from elastic_core.messages import PublishDecision as PublishDecision
from elastic_core.messages import RendezvousFailed as RendezvousFailed
from elastic_core.messages import RendezvousLeft as RendezvousLeft
from elastic_core.messages import RoundChanged as RoundChanged
from elastic_core.messages import RoundFormed as RoundFormed
from elastic_core.messages import WatchRound as WatchRound
from elastic_core.options.choices import Choices as Choices
from elastic_core.options.devices import Node as Node
from elastic_core.options.devices import count_for as count_for
from elastic_core.options.entrypoint import LOCAL_RANK_MACRO as LOCAL_RANK_MACRO
from elastic_core.options.entrypoint import make_entrypoint as make_entrypoint
from elastic_core.options.hook_options import all_hook_options as all_hook_options
from elastic_core.options.hook_options import hook_option as hook_option
from elastic_core.options.hook_options import is_hook_option as is_hook_option
from elastic_core.options.readers import comma_list as comma_list
from elastic_core.options.readers import key_values as key_values
from elastic_core.options.resolve import resolve as resolve
from elastic_core.options.settings import DEFAULT_SIGNALS as DEFAULT_SIGNALS
from elastic_core.options.settings import Entrypoint as Entrypoint
from elastic_core.options.settings import RunSettings as RunSettings
from elastic_core.options.table import BY_DEST as BY_DEST
from elastic_core.options.table import OPTIONS as OPTIONS
from elastic_core.plugin_faults import Fault as Fault
from elastic_core.plugin_faults import PluginLabel as PluginLabel
from elastic_core.plugins.entry_import import IN_CODE as IN_CODE
from elastic_core.plugins.registry import PluginRegistry as PluginRegistry
from elastic_core.processes.errors.reader import parse_error_file as parse_error_file
from elastic_core.processes.errors.reader import read_error_file as read_error_file
from elastic_core.processes.group import WorkerGroup as WorkerGroup
from elastic_core.processes.output.layout import LogLayout as LogLayout
from elastic_core.processes.output.layout import RankPaths as RankPaths
from elastic_core.processes.output.layout import Std as Std
from elastic_core.processes.output.layout import line_prefix as line_prefix
from elastic_core.processes.output.layout import parse_ranks as parse_ranks
from elastic_core.processes.output.layout import stream_plans as stream_plans
from elastic_core.processes.output.sink import Console as Console
from elastic_core.processes.spec import StreamPlan as StreamPlan
from elastic_core.processes.spec import WorkerLaunch as WorkerLaunch
from elastic_core.processes.spec import WorkerPaths as WorkerPaths
from elastic_core.processes.sweep import Sweeper as Sweeper
from elastic_core.rendezvous import registry as registry
from elastic_core.rendezvous.coordinated import Backend as Backend
from elastic_core.rendezvous.coordinated import CoordinatedRendezvous as CoordinatedRendezvous
from elastic_core.rendezvous.coordinated_options import DEFAULT_LEASE_TTL_S as DEFAULT_LEASE_TTL_S
from elastic_core.rendezvous.identity import ALLOWABLE as ALLOWABLE
from elastic_core.rendezvous.identity import attempt_from_environment as attempt_from_environment
from elastic_core.rendezvous.local import LocalRendezvous as LocalRendezvous
from elastic_core.starters import CallStarter as CallStarter
from elastic_core.starters import ReactorLoop as ReactorLoop
from elastic_core.system.reactor import Reactor as Reactor

if typing.TYPE_CHECKING:
    from elastic_core.launcher.job import run_job as run_job


def __getattr__(name: str) -> object:
    if name == "run_job":
        from elastic_core.launcher.job import run_job

        return run_job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
