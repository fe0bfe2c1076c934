"""Commands that end a run."""

WAITS = """
import json, os, signal, threading
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
print(json.dumps({"round": int(os.environ["ELASTIC_ROUND"]), "world": int(os.environ["WORLD_SIZE"])}), flush=True)
told.wait()
print(json.dumps({"saved": True}), flush=True)
"""


class Nodes:
    """Agents of one run on this host, which meet in a store."""

    def __init__(self, elastic, script, *store, conf="lease_ttl=5"):
        self._store = [*store, "--rdzv-conf", f"last_call_timeout=0.3,{conf}"]
        self._elastic, self._script = elastic, script(WAITS)

    def start(self, *names, nnodes="1:3"):
        words = [*self._store, "--nnodes", nnodes, "--shutdown-timeout", "20"]
        agents = [self._elastic(*words, "--node-id", name, self._script) for name in names]
        return dict(zip(names, agents, strict=True))
