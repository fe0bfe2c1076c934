"""The connection to an API server from kubeconfig, with its failures in one line each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
import httpx2
import yaml
from lightkube import ApiError, Client, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as ConfigurationError

from elastic_core.api import ConfigError, ElasticError
from elastic_core.api.tools import clean

FIELD_MANAGER: Final = "elastic-k8s"
NOT_FOUND: Final = 404
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_CONFLICT: Final = 409
_INVALID: Final = 422
_HINTS: Final = {
    _UNAUTHORIZED: "log in again, or --context",
    _FORBIDDEN: "a role that allows it, or another --namespace",
    _CONFLICT: "elastic k8s delete, then apply",
}

CONTEXT: Final = click.Option(["--context"], metavar="NAME", help="Of kubeconfig; default: its current one.")
NAMESPACE: Final = click.Option(["--namespace", "-n"], metavar="NAME", help="Default: the context's.")


@contextmanager
def connected(context: str | None, namespace: str | None, *, dry_run: bool = False) -> Iterator[Client]:
    """Connect for a `with` block, in which connection failures and rejections become elastic-core's errors.

    Args:
        context: Context of kubeconfig. `None` means the current one, or in a pod that pod's own account.
        namespace: `None` means the context's.
        dry_run: Whether the API server only checks the objects, and stores nothing.

    Raises:
        ConfigError: kubeconfig can't be used.
        ElasticError: the API server can't be reached, or rejects the request.
    """
    config = _config(context)
    server = config.cluster.server
    try:
        with Client(config=config, namespace=namespace, field_manager=FIELD_MANAGER, dry_run=dry_run) as client:
            yield client
    except httpx2.HTTPStatusError as err:  # ApiError is one
        raise refusal(err, server) from err
    except httpx2.TransportError as err:
        hint = "a cluster that runs, or --context"
        raise ElasticError(f"the API server at {server} can't be reached: {_text(err)}", hint=hint) from err
    except ConfigurationError as err:
        raise ConfigError(f"kubeconfig: {_text(err)}", hint="another --context") from err


def _config(context: str | None) -> SingleConfig:
    hint = "KUBECONFIG=FILE, or a context that it has"
    try:
        found = KubeConfig.from_env().get(context)
    except ConfigurationError as err:
        raise ConfigError(f"kubeconfig: {_text(err)}", hint=hint) from err
    except (AttributeError, KeyError, TypeError, ValueError, OSError, yaml.YAMLError) as err:
        raise ConfigError(f"kubeconfig can't be read: {type(err).__name__}: {_text(err)}", hint=hint) from err
    if found is None:
        raise ConfigError("kubeconfig: no current context; expected one", hint="--context NAME")
    return found if found.user is not None else found._replace(user=User())  # without one, lightkube fails


def refusal(err: httpx2.HTTPStatusError, server: str) -> ElasticError:
    """Return a rejection by the API server as elastic-core's error."""
    code = err.response.status_code if err.response is not None else 0
    said = err.status.message if isinstance(err, ApiError) else None
    text = " ".join(clean(said or f"status {code}").split())
    if code == _INVALID and "immutable" in text:
        return ElasticError(f"it is there already, and can't be changed so: {text}", hint=_HINTS[_CONFLICT])
    hint = _HINTS.get(code, "what the API server at its other end says")
    return ElasticError(f"the API server at {server} refused: {text}", hint=hint if code in _HINTS else "")


def is_missing(err: httpx2.HTTPStatusError) -> bool:
    """Return whether the object or its kind does not exist."""
    return err.response is not None and err.response.status_code == NOT_FOUND


def _text(err: BaseException) -> str:
    return " ".join(clean(str(err) or type(err).__name__).split())


def name_argument() -> Any:  # noqa: ANN401 - click's own
    """Return the argument that names a run."""
    return click.Argument(["name"])
