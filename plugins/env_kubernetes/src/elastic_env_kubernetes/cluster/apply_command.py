"""`elastic k8s apply`: send a manifest to the API server."""

from typing import Any, Final

import click
import httpx2
from lightkube import ApiError, Client
from lightkube.codecs import resource_registry
from lightkube.core.exceptions import LoadResourceError
from lightkube.types import PatchType

from elastic_core.api import ConfigError, ElasticError
from elastic_core.api.commands import echo
from elastic_env_kubernetes.cluster.connection import CONTEXT, NAMESPACE, connected, is_missing
from elastic_env_kubernetes.manifests import kinds
from elastic_env_kubernetes.yaml_file import read_documents

_EXTENSIONS: Final = {
    "JobSet": "install JobSet in the cluster, or --kind job",
    "ServiceMonitor": "install the Prometheus operator, or no --metrics-port",
}
"""Kinds that a cluster may lack, and the remedy."""


def _apply(file: str, context: str | None, namespace: str | None, dry_run: bool) -> None:
    documents = _documents(file)
    resources = [_resource(file, each) for each in documents]
    with connected(context, namespace, dry_run=dry_run) as client:
        for resource, document in zip(resources, documents, strict=True):
            _send(client, resource, document, namespace)
            echo(f"{document['kind']} {document['metadata']['name']} {'would be ' if dry_run else ''}applied")


def _documents(file: str) -> list[Any]:
    found = read_documents("the manifest", file, "a file of elastic k8s render")
    if not found:
        raise ConfigError(f"the manifest {file!r} is empty", hint="elastic k8s render … | elastic k8s apply -f -")
    return found


def _resource(file: str, document: object) -> Any:  # noqa: ANN401 - a class of lightkube
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ConfigError(
            f"the manifest {file!r} has a document without kind or name; expected Kubernetes objects",
            hint="as elastic k8s render writes",
        )
    version, kind = str(document.get("apiVersion")), str(document.get("kind"))
    try:
        return resource_registry.load(version, kind)
    except (LoadResourceError, ImportError, AttributeError) as err:
        known = ", ".join(kinds.resource_of(each).kind for each in (kinds.JobSet, kinds.ServiceMonitor))
        raise ConfigError(
            f"the kind {kind!r} of {version!r} is not known here: Kubernetes' own are, and {known}",
            hint=f"kubectl apply -f {file}",
        ) from err


def _send(client: Client, resource: Any, document: dict[str, Any], namespace: str | None) -> None:  # noqa: ANN401
    """Apply on the server's side, unchanged: the server, not a model here, rejects unknown fields."""
    place = namespace or document["metadata"].get("namespace")
    try:
        client.patch(resource, document["metadata"]["name"], document, namespace=place, patch_type=PatchType.APPLY)
    except httpx2.HTTPStatusError as err:
        if not is_missing(err) or isinstance(err, ApiError):
            raise
        version, kind = document["apiVersion"], document["kind"]  # the path is unknown: no object, but the whole kind
        raise ElasticError(f"{version} has no kind {kind} here", hint=_EXTENSIONS.get(kind, "a newer cluster")) from err


_HELP = """\
Send the manifest of a run to the API server, which makes what is not there and changes what may be changed.

It is applied on the server's side, as field manager 'elastic-k8s': no field is dropped on the way, and an unknown one
is refused.
"""

command = click.Command(
    "apply",
    callback=_apply,
    params=[
        click.Option(["--file", "-f"], metavar="FILE|-", required=True, help="The manifest; -: standard input."),
        click.Option(["--dry-run"], is_flag=True, help="The API server checks the manifest and stores nothing."),
        CONTEXT,
        NAMESPACE,
    ],
    help=_HELP,
    epilog="\b\nExample:\n  elastic k8s render bert-7 --image IMAGE --nnodes 4 -- train.py | elastic k8s apply -f -",
)
