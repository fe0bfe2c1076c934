"""Torch's c10d backend by name: the state in torch's TCPStore or FileStore, for library users.

`elastic run --rdzv-backend c10d` does not use it: there the first node hosts its own server, and no agent imports
torch. Torch is named in strings so that the type checker needs no torch.
"""

import os
import socket
import tempfile
from base64 import b64decode, b64encode
from binascii import Error as NoBase64Error
from datetime import timedelta
from typing import Any, Final

from elastic_core.api import ElasticError, WaitBudget
from elastic_core.api.rendezvous import RendezvousConnectionError, RendezvousStateError
from elastic_core.api.stores import is_loopback
from elastic_torchrun.rendezvous.blocking_calls import Asker
from elastic_torchrun.rendezvous.endpoint import parse_rendezvous_endpoint
from elastic_torchrun.rendezvous.parameters import RendezvousParameters
from elastic_torchrun.rendezvous.state_backend import RendezvousBackend, Token
from elastic_torchrun.torch_import import torch_distributed

DEFAULT_PORT: Final = 29400
_READ_TIMEOUT_S: Final = 60
_GRACE_S: Final = 2.0
_LOOPBACK: Final = "127.0.0.1"
"""How much longer than its own limit torch may take."""
_NOTHING: Final = "Y2FuaW1hZGFt"
"""Value for no state, since reading a missing key would block. Torch's own backend writes the same."""


class C10dRendezvousBackend(RendezvousBackend):
    """Keeps the state in a store of torch's that has compare-and-set.

    Args:
        store: A TCPStore, FileStore or HashStore.
        run_id: The run's id.
        hosting: Whether this process hosts the store for all nodes.
        hosted_by_member: Whether a node of the run hosts it, so that its loss ends the run.

    Raises:
        ValueError: the run has no id.
        RendezvousConnectionError: the store failed.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # torch's
        run_id: str,
        *,
        hosting: bool = False,
        hosted_by_member: bool = False,
    ) -> None:
        """Make the key if it is missing."""
        if not run_id:
            raise ValueError("the run id is empty")
        self._store = store
        self._key = f"torch.rendezvous.{run_id}"
        self.hosting = hosting
        self.hosted_by_member = hosted_by_member
        self._call("compare_set", self._key, "", _NOTHING)

    @property
    def name(self) -> str:
        """Return `c10d`."""
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state; its token is its text in the store."""
        return _decoded(self._call("get", self._key))

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if it is still the one of `token`."""
        if token and not isinstance(token, bytes):  # of another backend
            found = self.get_state()
            return None if found is None else (*found, False)
        expected = token.decode() if token else _NOTHING
        found = _decoded(self._call("compare_set", self._key, expected, b64encode(state).decode()))
        return None if found is None else (*found, found[0] == state)  # the store only tells what stands

    def _call(self, operation: str, *arguments: str) -> bytes:
        try:
            answer: bytes = getattr(self._store, operation)(*arguments)
        except (ValueError, RuntimeError, TimeoutError) as error:  # torch's are kinds of these
            raise RendezvousConnectionError(f"the c10d store failed: {_one_line(error)}") from error
        return answer


def _decoded(text: bytes) -> tuple[bytes, Token] | None:
    if text == _NOTHING.encode():
        return None
    try:
        return b64decode(text, validate=True), text
    except NoBase64Error as error:
        raise RendezvousStateError("the c10d store holds a rendezvous state that is no base64") from error


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """Return a backend, and torch's store that it uses.

    Its options are `store_type` (`tcp`, `file`; default tcp), `read_timeout` (seconds, for tcp; default 60) and
    `is_host` (whether this process hosts the TCPStore; by default the host in the endpoint does).

    Raises:
        ValueError: an option is invalid.
        RendezvousConnectionError: the store can't be made or reached.
    """
    kind = str(params.get("store_type", "tcp")).strip().lower()
    if kind == "file":
        store, hosting = _file_store(params), False
    elif kind == "tcp":
        store, hosting = _tcp_store(params)
    else:
        raise ValueError(f"rendezvous option store_type: {kind!r}; expected tcp or file")
    backend = C10dRendezvousBackend(store, params.run_id, hosting=hosting, hosted_by_member=kind == "tcp")
    return backend, store


def _file_store(params: RendezvousParameters) -> Any:  # noqa: ANN401  # torch's
    path = params.endpoint
    if not path:
        descriptor, path = tempfile.mkstemp(prefix="elastic_rendezvous_")
        os.close(descriptor)
    try:
        return torch_distributed("FileStore").FileStore(path)
    except (ValueError, RuntimeError) as error:
        raise RendezvousConnectionError(f"no file store at {path!r}: {_one_line(error)}") from error


def _tcp_store(params: RendezvousParameters) -> tuple[Any, bool]:
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    asked = params.get_as_bool("is_host")
    timeout_s = params.get_as_int("read_timeout", _READ_TIMEOUT_S) or 0
    if timeout_s <= 0:
        raise ValueError(f"rendezvous option read_timeout={timeout_s}; expected seconds, more than 0")
    # Of several agents on the host that the endpoint names only one can host the store.
    leads_here, own = _leads_here(host), host.lower() == socket.gethostname().lower()
    tries = (asked,) if asked is not None else (True, False) if leads_here or own else (False,)
    for hosting in tries:
        # The name is for others where it does not lead here: the host reaches itself without it.
        reached = _LOOPBACK if (hosting or own) and not leads_here else host
        try:
            return _tcp_store_at(reached, port, hosting, timeout_s), hosting
        except (ValueError, RuntimeError, TimeoutError, ElasticError) as error:
            trouble = error
    raise RendezvousConnectionError(
        f"no c10d store at {host}:{port} within {timeout_s} s: {_one_line(trouble)}",
        hint="look whether the node that hosts it runs, and which port it was given",
    ) from trouble


def _tcp_store_at(host: str, port: int, hosting: bool, timeout_s: int) -> Any:  # noqa: ANN401  # torch's
    make = torch_distributed("TCPStore").TCPStore

    def work() -> object:
        return make(host, port, is_master=hosting, multi_tenant=True, timeout=timedelta(seconds=timeout_s))

    # On a thread that may be left behind: torch waits without limit for a listener that sends nothing.
    asker = Asker("elastic-c10d")
    try:
        return asker.ask(work, wait=WaitBudget.lasting(timeout_s + _GRACE_S))
    finally:
        asker.close()


def _leads_here(host: str) -> bool:
    """Return whether a name resolves to an address of this host, to which a socket can be bound."""
    if host == "localhost" or is_loopback(host):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_bindable(family, address) for family, _, _, _, address in found)


def _is_bindable(family: int, address: Any) -> bool:  # noqa: ANN401  # as various as families
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)
    except OSError:
        return False
    return True


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split("\n", 1)[0].split()).rstrip(".") or type(error).__name__
