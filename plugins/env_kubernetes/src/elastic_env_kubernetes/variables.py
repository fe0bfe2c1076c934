"""The variables by which a manifest says to its pods what Kubernetes itself does not."""

from typing import Final

INDEX: Final = "JOB_COMPLETION_INDEX"
"""Kubernetes' own, in each pod of an Indexed Job; a JobSet's pods are such pods, too."""
JOB_UID: Final = "ELASTIC_JOB_ID"
"""The uid of the Job or the JobSet. The core reads it, too: another job is another attempt."""
NNODES: Final = "ELASTIC_K8S_NNODES"
"""`N` or `MIN:MAX`."""
SPARES: Final = "ELASTIC_K8S_SPARES"
"""How many pods there are beyond MAX.

No `--spares`: a pod that is made anew may come before the lease of the one that was lost has ended, and would be sent
home as one too many, with 0, for which its Job counts it as done.
"""
RUN: Final = "ELASTIC_K8S_RUN"
"""The name of the Job or the JobSet."""
FIRST_POD: Final = "ELASTIC_K8S_FIRST_POD"
"""Where the others reach the pod with index 0, and its port for the rendezvous: `bert-7-0.bert-7:29400`."""
GRACE_PERIOD: Final = "ELASTIC_K8S_GRACE_PERIOD"
"""The pod's `terminationGracePeriodSeconds`."""
GPUS: Final = "ELASTIC_K8S_GPUS"
"""How many GPUs the container has."""
POD_NAME: Final = "POD_NAME"
POD_IP: Final = "POD_IP"

PORT: Final = 29400
"""Of the rendezvous, unless `FIRST_POD` says another; torch's c10d has it, too."""
MARGIN_S: Final = 10
"""What is left of a grace period for everything but the workers: the other nodes, output, the last records."""
