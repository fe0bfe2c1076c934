"""A worker that is told what to do: for torchrun with our backends, and for `elastic run` with torch's handlers.

It tells where it is in one line of JSON; a file `crash<RANK>` in the folder that it is given ends it with 3, a file
`finish` well.
"""

WORKER = """
import json, os, sys, threading
from pathlib import Path

def end_with_agent(parent=os.getppid(), pause=threading.Event()):
    while os.getppid() == parent:  # torch leaves the workers of a killed agent alive
        pause.wait(0.05)
    os._exit(9)

threading.Thread(target=end_with_agent, daemon=True).start()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
told = {name: os.environ[name] for name in (*names, "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT")}
os.write(1, (json.dumps(told) + os.linesep).encode())
folder, pause = Path(sys.argv[1]), threading.Event()
while not (folder / "finish").exists():
    if (folder / f"crash{os.environ['RANK']}").exists():
        (folder / f"crash{os.environ['RANK']}").unlink()
        sys.exit(3)
    pause.wait(0.02)
"""


def last_round(agents, world, *, nproc=1):
    """Return what the last workers of all agents told, by rank, when they are of one world of this size; else None."""
    last = [line for agent in agents for line in agent.lines()[-nproc:]]
    met = {(line["MASTER_ADDR"], line["MASTER_PORT"], line["WORLD_SIZE"]) for line in last}
    ranks = sorted(int(line["RANK"]) for line in last)
    if len(met) != 1 or ranks != list(range(world)) or last[0]["WORLD_SIZE"] != str(world):
        return None
    return sorted(last, key=lambda line: int(line["RANK"]))
