"""One process of a program, with its output files."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from typing import IO, Any

from elastic_core.api.workers import bound_to
from elastic_torchrun.processes.binding import cpus_for, inherited_nproc


class SubprocessHandler:
    """Starts a program in a session of its own.

    Args:
        entrypoint: The program.
        args: Its arguments; each is converted to text.
        env: Its variables in addition to this process's.
        stdout: The file for its stdout, which is overwritten; empty means this process's own.
        stderr: The same for its stderr.
        local_rank_id: Its rank among the workers of this node.
        numa_options: Binding to processors (`elastic_numa.NumaOptions`). `None` means no binding.

    `proc` is the `subprocess.Popen` object.

    Raises:
        OSError: there is no such program, or a file can't be written.
    """

    def __init__(
        self,
        entrypoint: str,
        args: tuple[Any, ...],
        env: Mapping[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: object = None,
    ) -> None:
        """Start it."""
        self.local_rank_id = local_rank_id
        whole = {**os.environ, **env}
        with ExitStack() as closing:
            out, err = (closing.enter_context(open(path, "wb")) if path else None for path in (stdout, stderr))  # noqa: PTH123  # names as torch takes them
            with bound_to(cpus_for(numa_options, local_rank_id, inherited_nproc(whole, local_rank_id))):
                self.proc: subprocess.Popen[bytes] = subprocess.Popen(
                    (entrypoint, *map(str, args)), env=whole, stdout=out, stderr=err, start_new_session=True
                )
            self._files: list[IO[bytes]] = [file for file in (out, err) if file is not None]
            closing.pop_all()

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the process and its children, unless it was reaped, and close the files. Does not wait for it."""
        if self.proc.poll() is None:
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
        for file in self._files:
            file.close()


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[Any, ...],
    env: Mapping[str, str],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: object = None,
) -> SubprocessHandler:
    """Return the handler of a started process. The arguments are those of `SubprocessHandler`."""
    return SubprocessHandler(
        entrypoint=entrypoint,
        args=args,
        env=env,
        stdout=stdout,
        stderr=stderr,
        local_rank_id=local_rank_id,
        numa_options=numa_options,
    )
