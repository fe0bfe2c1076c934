"""The variables by which a manifest passes data to its pods that Kubernetes itself does not."""

from typing import Final

INDEX: Final = "JOB_COMPLETION_INDEX"
"""Kubernetes' own variable in each pod of an Indexed Job, which a JobSet's pods are, too."""
JOB_UID: Final = "ELASTIC_JOB_ID"
"""The uid of the Job or the JobSet. The core reads it, too: another job is another attempt."""
NNODES: Final = "ELASTIC_K8S_NNODES"
"""`N` or `MIN:MAX`."""
SPARES: Final = "ELASTIC_K8S_SPARES"
"""The number of pods in addition to MAX.

`--spares` is not used: a new pod may start before the lease of the lost one has ended. It would then be rejected as
surplus and exit with 0, so that its Job would count it as complete.
"""
RUN: Final = "ELASTIC_K8S_RUN"
"""The name of the Job or the JobSet."""
FIRST_POD: Final = "ELASTIC_K8S_FIRST_POD"
"""The address of the pod with index 0 for other pods, with its port: `bert-7-0.bert-7:29400`."""
GRACE_PERIOD: Final = "ELASTIC_K8S_GRACE_PERIOD"
"""The pod's `terminationGracePeriodSeconds`."""
GPUS: Final = "ELASTIC_K8S_GPUS"
"""The number of GPUs in the container."""
POD_NAME: Final = "POD_NAME"
POD_IP: Final = "POD_IP"

PORT: Final = 29400
"""The port of the rendezvous, unless `FIRST_POD` has another; torch's c10d has the same."""
MARGIN_S: Final = 10
"""The part of a grace period for everything except the workers: other nodes, output, the last records."""
