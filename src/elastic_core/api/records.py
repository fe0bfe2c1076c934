"""Names for the records of this user's runs on this machine. Hooks may import them: no command line is loaded."""

from elastic_core.rundir.run_records import RunRecord as RunRecord
from elastic_core.rundir.run_records import run_places as run_places
from elastic_core.rundir.run_records import run_records as run_records
