"""Names for commands of `elastic`: output, options of a run, its store, and its incidents."""

from elastic_core.cli.output import echo as echo
from elastic_core.cli.output import echo_json as echo_json
from elastic_core.cli.run_choices import StoreChoice as StoreChoice
from elastic_core.cli.run_choices import chosen_policy as chosen_policy
from elastic_core.cli.run_choices import chosen_store as chosen_store
from elastic_core.cli.run_choices import open_store as open_store
from elastic_core.cli.run_choices import run_option as run_option
from elastic_core.failure.incident import Incident as Incident
from elastic_core.failure.incident import decode_incident as decode_incident
from elastic_core.failure.incident import to_failure as to_failure
from elastic_core.failure.report import render_incident as render_incident
from elastic_core.failure.runner import checked_decision as checked_decision
from elastic_core.options.environments import proposed_values as proposed_values
from elastic_core.rundir.found_incidents import FoundIncident as FoundIncident
from elastic_core.rundir.found_incidents import find_incidents as find_incidents
from elastic_core.system.colours import line_painter as line_painter
from elastic_core.system.colours import report_painter as report_painter
