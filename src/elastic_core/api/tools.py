"""Helpers for hooks and commands: texts for users, private files, and the identity of an agent."""

from elastic_core.encoding import clean as clean
from elastic_core.encoding import rank_ranges as rank_ranges
from elastic_core.rendezvous.identity import user_name as user_name
from elastic_core.rundir.identity import AgentIdentity as AgentIdentity
from elastic_core.system.clock import SystemClock as SystemClock
from elastic_core.system.clock import duration_text as duration_text
from elastic_core.system.private_file import read_file as read_file
from elastic_core.system.private_file import replace_file as replace_file
