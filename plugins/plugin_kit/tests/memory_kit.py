"""The memory server as the store kit needs it: on a clock that the kit moves."""

from contextlib import contextmanager

from elastic_plugin_kit import ManualClock, MemoryServer, MemoryStore, rendezvous_settings


class Bench:
    """A server, and what the kit asks for besides clients."""

    def __init__(self, cls=MemoryStore):
        self._cls = cls
        self.clock = ManualClock()
        self.server = MemoryServer(clock=self.clock)

    def connect(self, run_id):
        return self._cls(rendezvous_settings(run_id=run_id), server=self.server)

    @contextmanager
    def pause(self):
        self.server.pause()
        yield
        self.server.resume()

    def connect_nowhere(self):
        gone = MemoryServer()
        gone.stop()
        return self._cls(rendezvous_settings(run_id="nowhere"), server=gone)

    def pass_time(self, seconds):
        self.clock.advance(seconds)
