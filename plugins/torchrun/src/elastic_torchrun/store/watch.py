"""The check of a worker's first store: a client without a host gets a store, or a log line.

By default rank 0's worker hosts the workers' store, in `init_process_group`, and the agent only reserves the port. A
script that first connects there as a client (as torchft's Manager does) would wait until its time limit; under
torchrun the agent has a store there from the start. The first store that rank 0 makes for that port decides: for a
client, the agent opens a store. If it is a server, or torch is not used, this module does nothing. A rank that waits
for rank 0 can't know what rank 0 will do, so rank 1 logs after a while that it waits.

The check replaces `__new__`, which has returned before torch's `__init__` connects. The traceback of a store that can't
be made therefore has no frame of this module.
"""

import os
import sys

# Not from typing: importing it would cost a script more than all the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, ModuleType

AGENT_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
SOCKET_VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
RANKS = ("0", "1")
"""The ranks that check. Other ranks wait for rank 0 as rank 1 does, and need no log line."""
TOLD_AFTER_S = 30.0
"""How long rank 1 waits without a log line: rank 0 may be reading its data."""
_LOOK_S = 0.5
_MODULE = "torch._C._distributed_c10d"
_PARAMETERS = ("host_name", "port", "world_size", "is_master")
_LISTENS_S = 2.0
_AGENT_S = 10.0
_LONGEST_ANSWER = 4096
_AGENT_UP_S = 5.0
"""How long the agent's socket may be missing: it is made half a second after the workers are started."""


def watch() -> None:
    """Begin the check if rank 0's worker is to host the store. Called: before the worker's script."""
    port, rank = os.environ.get("MASTER_PORT", ""), os.environ.get("RANK", "")
    if rank not in RANKS or os.environ.get(AGENT_STORE_VARIABLE) != "False" or not port.isdecimal():
        return
    found = StoreWatch(int(port), rank)
    sys.meta_path.insert(0, found)
    found.attach()  # a standby interpreter has imported torch before it was a worker


class StoreWatch:
    """Waits for torch's class of stores, as a finder that finds no module; then for the first store."""

    def __init__(self, port: int, rank: str) -> None:
        """Attach to nothing yet."""
        self._port = port
        self._rank = rank
        self._pid = os.getpid()
        self._restore: Callable[[], None] | None = None

    def find_spec(self, name: str, path: object = None, target: "ModuleType | None" = None) -> None:
        """Find nothing. Called: for each imported module; the class exists before the modules that use it."""
        if self._restore is None and name.startswith("torch.distributed."):
            self.attach()

    def attach(self) -> None:
        """Let the class notify this object of each store before it is made, if the class exists."""
        store = getattr(sys.modules.get(_MODULE), "TCPStore", None)
        if store is None:
            return
        make, see = store.__new__, self.see

        def __new__(cls: type, *args: object, **kwargs: object) -> object:
            caller = sys._getframe(1)
            while caller.f_code.co_name == "__new__" and caller.f_back is not None:  # of elastic-standby, or another
                caller = caller.f_back
            see(args, kwargs, caller)
            return make(cls)

        store.__new__ = __new__
        self._restore = lambda: delattr(store, "__new__")

    def see(self, args: tuple[object, ...], kwargs: "Mapping[str, object]", caller: "FrameType") -> None:
        """Note a store that `caller` is about to make. Never raises."""
        try:
            given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
            if given.get("port") == self._port and os.getpid() == self._pid:
                self.detach()
                if not given.get("is_master") and os.environ.get(AGENT_STORE_VARIABLE) == "False":
                    place = f"{given.get('host_name')}:{self._port}"
                    if self._rank == "0":
                        self._ask(str(given.get("host_name")), place)
                    else:
                        _tell_later(place, caller)
        except Exception:  # noqa: BLE001  # whatever is odd about this store, it is the script's
            pass

    def detach(self) -> None:
        """Restore everything."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._restore is not None:
            self._restore()

    def _ask(self, host: str, place: str) -> None:
        """Have the agent open a store if there is none. The client that is about to be made waits for it."""
        import socket
        from contextlib import suppress

        with suppress(OSError):
            socket.create_connection((host, self._port), _LISTENS_S).close()
            return
        refusal = _refusal()
        if refusal:
            _tell(f"rank 0 connects to a store at {place}, and no process hosts one ({refusal})")
        else:
            os.environ[AGENT_STORE_VARIABLE] = "True"  # `init_process_group` is to be its client, too


def _tell_later(place: str, caller: "FrameType") -> None:
    """Print a line if this thread is still in the same call of `caller` after `TOLD_AFTER_S`."""
    import threading
    import time

    call = (threading.get_ident(), id(caller), caller.f_lasti)  # not the frame itself: it holds what the script has

    def look() -> None:
        end_s = time.monotonic() + TOLD_AFTER_S
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))  # noqa: TID251  # a worker has no reactor
            if not _goes_on(*call):
                return
        _tell(f"rank 1 has waited {TOLD_AFTER_S:g} s for a store at {place}: rank 0 has not opened one yet")

    threading.Thread(target=look, daemon=True).start()


def _goes_on(thread: int, caller: int, at: int) -> bool:
    """Return whether a thread is still in the call that a frame was making at an instruction."""
    frame = sys._current_frames().get(thread)
    while frame is not None and id(frame) != caller:
        frame = frame.f_back
    return frame is not None and frame.f_lasti == at


def _tell(text: str) -> None:
    told = f"elastic: {text}. Try: elastic run --agent-store, if it is not to be rank 0's"
    print(told, file=sys.stderr, flush=True)  # noqa: T201  # a worker's voice


def _refusal() -> str:
    """Send the request to the agent. Return why it does not open a store, or an empty text."""
    import time

    path = os.path.join(os.path.dirname(os.environ.get(SOCKET_VARIABLE, "")), "agent.sock")  # noqa: PTH118, PTH120
    end_s = time.monotonic() + _AGENT_UP_S
    while True:
        try:
            return _answer(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if not os.path.isabs(path) or time.monotonic() > end_s:  # noqa: PTH117
                return "its agent has no control plane"
            time.sleep(0.1)  # noqa: TID251  # a worker has no reactor
        except Exception as err:  # noqa: BLE001  # reported, and the script goes on
            return f"its agent: {err}"


def _answer(path: str) -> str:
    """Return the reason from the agent's control plane. Its client module would cost a script more time."""
    import socket

    answer = b""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(_AGENT_S)
        agent.connect(path)
        agent.sendall(b"POST /handler/store HTTP/1.1\r\nHost: agent\r\nContent-Length: 0\r\n\r\n")
        while len(answer) < _LONGEST_ANSWER and (piece := agent.recv(_LONGEST_ANSWER)):
            answer += piece
    head, _, text = answer.partition(b"\r\n\r\n")
    return "" if head.split(b" ")[1:2] == [b"200"] else text.decode(errors="replace") or "no answer"
