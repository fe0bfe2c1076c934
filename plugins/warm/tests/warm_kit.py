"""Runs of workers without torch that can leave their round, and what is known of them."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from patience import patience
from support import processes_with, wait_for

WORKER = Path(__file__).with_name("warm_worker.py")
COUNTS = """
from msgspec.structs import replace
from elastic_core.api import Intensity

class Counts(Intensity):
    api_version = 1

    def decide(self, failure, history, *, used=None):
        decision = super().decide(failure, history, used=used)
        return replace(decision, reason=f"{failure.alive_count} alive, {failure.kept_count} kept")
"""
"""A policy that names the workers that were alive, and kept, in the line about the restart."""


class Library:
    """A program that runs an agent in its own process."""

    def __init__(self, command, folder):
        self.mark = f"WARM_TEST={os.getpid()}-{folder}"
        name, _, value = self.mark.partition("=")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        self.out_path, self.err_path = folder / "library.out", folder / "library.err"
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=inherited | {name: value}, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder
            )

    @property
    def out(self):
        return self.out_path.read_text()

    @property
    def err(self):
        return self.err_path.read_text()

    def survivors(self):
        return processes_with(self.mark)

    def wait(self, within_s):
        return self.process.wait(patience(within_s))

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.survivors():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Run:
    """One agent, whose workers note what they do in files of its folder."""

    def __init__(self, agent, folder):
        self.agent = agent
        self.folder = folder

    def noted(self, name, local_rank):
        """Return the pid and the round of each time that a worker has noted it."""
        path = self.folder / f"{name}.{local_rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def until(self, name, local_rank, count=1):
        """Wait until a worker has noted it so often; return all."""
        wait_for(
            lambda: len(self.noted(name, local_rank)) >= count,
            what=f"{count} times {name!r} by {local_rank}: {self.noted(name, local_rank)}\n{self.agent.err}",
        )
        return self.noted(name, local_rank)

    def until_round(self, index, count):
        """Wait until that many workers are in a round; return their pids by local rank."""
        pids = {}
        for rank in range(count):
            wait_for(
                lambda rank=rank: [pid for pid, round_ in self.noted("began", rank) if round_ == index],
                what=f"round {index} of local rank {rank}\n{self.agent.err}",
            )
            pids[rank] = next(pid for pid, round_ in self.noted("began", rank) if round_ == index)
        return pids

    def until_recorded(self, **fields):
        """Wait for an incident of the run with these fields; return it."""

        def recorded():
            with suppress(ValueError):  # there is no file yet
                incident = self.agent.incident()
                return incident if fields.items() <= incident.items() else None

        return wait_for(recorded, what=f"an incident with {fields}\n{self.agent.err}")

    def kill(self, pid, signum=signal.SIGKILL):
        os.kill(pid, signum)

    def fail(self, local_rank):
        (self.folder / f"fail.{local_rank}").write_text("")

    def finish(self):
        (self.folder / "finish").write_text("")

    def ends(self, code=0):
        """Check the agent's exit code, and that nothing is left."""
        assert self.agent.wait(60) == code, self.agent.err
        wait_for(lambda: not self.agent.survivors(), what="the end of all processes")
        return self.agent.err
