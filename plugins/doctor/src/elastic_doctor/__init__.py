"""`elastic doctor`: check whether a node is ready for a run. Distributions add checks by entry points.

An entry point of the group `elastic_doctor.checks` names a function of `Asked` that yields `Finding`s.
"""

from elastic_doctor.findings import CHECKS_GROUP as CHECKS_GROUP
from elastic_doctor.findings import Asked as Asked
from elastic_doctor.findings import Check as Check
from elastic_doctor.findings import Finding as Finding
from elastic_doctor.findings import Level as Level
