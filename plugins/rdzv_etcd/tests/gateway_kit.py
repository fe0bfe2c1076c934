"""What tests of etcd's gateway do with it."""

import socket
import threading
from contextlib import suppress

from elastic_rdzv_etcd.coding import b64, prefix_end


def put(gateway, key, wait, value=b"v", **more):
    return gateway.ask("kv/put", {"key": b64(key), "value": b64(value)} | more, wait=wait, writes=True)


def watching(gateway, wait, *prefixes, **more):
    creates = [{"key": b64(prefix), "range_end": b64(prefix_end(prefix))} | more for prefix in prefixes]
    return gateway.stream(creates, wait=wait)


class Fake:
    """A server that answers every connection with the same bytes, in pieces."""

    def __init__(self, *pieces, pause_s=0.0, listen=True):
        self._pieces, self._pause_s, self._listen = pieces, pause_s, listen
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.endpoint = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client):
        with suppress(OSError), client:
            if self._listen:
                client.recv(65536)
            for piece in self._pieces:
                client.sendall(piece)
                if self._over.wait(self._pause_s):
                    return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
