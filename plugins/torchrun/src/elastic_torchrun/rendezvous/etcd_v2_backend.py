"""Torch's `etcd-v2` backend by name: the state in one key of an etcd server with the v2 API, for library users.

`elastic run --rdzv-backend etcd-v2` does not use it: the store of elastic-rdzv-etcd has one key for each member, so
that many nodes can write at once.
"""

from base64 import b64decode, b64encode
from typing import Any, Final

from elastic_core.api.rendezvous import RendezvousConnectionError, RendezvousStateError
from elastic_torchrun.rendezvous.dynamic import DynamicRendezvousHandler, create_handler
from elastic_torchrun.rendezvous.etcd_client import import_etcd, make_client, troubles
from elastic_torchrun.rendezvous.parameters import RendezvousParameters
from elastic_torchrun.rendezvous.state_backend import RendezvousBackend, Token

_TTL_S: Final = 7200
_STATE_PREFIX: Final = "/torch/elastic/rendezvous"
_STORE_PREFIX: Final = "/torch/elastic/store"


class EtcdRendezvousBackend(RendezvousBackend):
    """Keeps the state in one key; its token is the key's `modifiedIndex`.

    Args:
        client: python-etcd's `Client`.
        run_id: The run's id.
        key_prefix: The directory of the key.
        ttl: Seconds after the last change until the key expires. `None` means two hours.

    Raises:
        ValueError: the run has no id.
    """

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:  # noqa: ANN401  # has no types
        """Send no request yet."""
        if not run_id:
            raise ValueError("the run id is empty")
        self._client = client
        self._key = f"{key_prefix}/{run_id}" if key_prefix else run_id
        self._ttl = ttl if ttl and ttl > 0 else _TTL_S
        self._etcd = import_etcd()
        self._troubles = troubles(self._etcd)

    @property
    def name(self) -> str:
        """Return `etcd-v2`."""
        return "etcd-v2"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state."""
        try:
            return _decoded(self._client.read(self._key))
        except self._etcd.EtcdKeyNotFound:
            return None
        except self._troubles as error:
            raise _failed(error) from error

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if it is still the one of `token`."""
        if token and not str(token).isdecimal():  # of another backend
            return self._standing()
        condition = {"prevIndex": int(token)} if token else {"prevExist": False}
        try:
            result = self._client.write(self._key, b64encode(state).decode(), self._ttl, **condition)
        except (self._etcd.EtcdAlreadyExist, self._etcd.EtcdCompareFailed, self._etcd.EtcdKeyNotFound):
            return self._standing()
        except self._troubles as error:
            raise _failed(error) from error
        return (*_decoded(result), True)

    def _standing(self) -> tuple[bytes, Token, bool] | None:
        found = self.get_state()
        return None if found is None else (*found, False)


def _decoded(result: Any) -> tuple[bytes, Token]:  # noqa: ANN401  # an EtcdResult
    try:
        return b64decode(result.value, validate=True), result.modifiedIndex
    except (ValueError, TypeError) as error:  # no base64, not ASCII, a directory
        raise RendezvousStateError("etcd holds a rendezvous state that is no base64") from error


def _failed(error: Exception) -> RendezvousConnectionError:
    return RendezvousConnectionError(f"etcd failed: {' '.join(str(error).split())}")


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Any]:
    """Return a backend, and torch's store on the same server.

    `etcd_client.make_client` has the options.

    Raises:
        ValueError: an option is invalid.
        RendezvousConnectionError: the server can't be reached.
    """
    from elastic_torchrun.rendezvous.etcd_store import EtcdStore  # imports torch

    client = make_client(params)
    backend = EtcdRendezvousBackend(client, params.run_id, key_prefix=_STATE_PREFIX)
    return backend, EtcdStore(client, _STORE_PREFIX)


def create_etcd_v2_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Return a handler on such a backend.

    Raises:
        ValueError: an option is invalid.
        RendezvousConnectionError: the server can't be reached.
    """
    backend, store = create_backend(params)
    return create_handler(store, backend, params)
