"""`elastic k8s delete`: delete a run's objects, and stop its pods."""

from typing import Any

import click
import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import Service
from lightkube.types import CascadeType

from elastic_core.api import ConfigError
from elastic_core.api.commands import echo
from elastic_env_kubernetes.cluster.connection import CONTEXT, NAMESPACE, connected, is_missing, name_argument
from elastic_env_kubernetes.cluster.found_run import labels_of, owner_of
from elastic_env_kubernetes.manifests.kinds import ServiceMonitor


def _delete(name: str, context: str | None, namespace: str | None) -> None:
    with connected(context, namespace) as client:
        owner = owner_of(client, name)
        if not labels_of(name).items() <= (owner.metadata.labels or {}).items():
            raise ConfigError(
                f"{owner.kind} {name!r} was not written by elastic k8s render",
                hint=f"kubectl delete {owner.kind.lower()} {name}",
            )
        # In the background: the API's default for Jobs leaves their pods running.
        client.delete(type(owner), name, cascade=CascadeType.BACKGROUND)
        echo(f"{owner.kind} {name} deleted; its pods are being stopped")
        for kind in (ServiceMonitor, Service):
            _delete_all(client, kind, name)


def _delete_all(client: Client, kind: Any, name: str) -> None:  # noqa: ANN401 - kinds of lightkube
    """Delete a run's objects of a kind. Missing objects and kinds are ignored."""
    try:
        for each in client.list(kind, labels=labels_of(name)):
            client.delete(kind, each.metadata.name)
            echo(f"{kind._api_info.resource.kind} {each.metadata.name} deleted")
    except httpx2.HTTPStatusError as err:
        if not is_missing(err):
            raise


command = click.Command(
    "delete",
    callback=_delete,
    params=[name_argument(), CONTEXT, NAMESPACE],
    help="Delete the run NAME: its Job or JobSet, whose pods get SIGTERM and their grace period, its Services, and its "
    "ServiceMonitor. Other objects than those of elastic k8s render are not changed.",
    epilog="Exit codes: 0; 1 the API server cannot be reached, or rejects the request; 2 usage, or no such run.",
)
