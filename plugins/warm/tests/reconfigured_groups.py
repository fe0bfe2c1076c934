"""What a group of gloo does if it is reconfigured, and not destroyed, between two rounds: prints one JSON object."""

import json
import multiprocessing
from datetime import timedelta

import torch
import torch.distributed as dist

PROCESSES = multiprocessing.get_context("fork")
LIMIT = timedelta(seconds=60)
SHORT = timedelta(seconds=1)


def serve(pipe):
    """Host a store until the process is killed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.recv()


def forked(function, *arguments):
    """Return a process that calls the function with one end of a pipe, and the other end."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def stores(count):
    """Return servers of stores with their ports."""
    started = [forked(serve) for _ in range(count)]
    return [(process, pipe.recv(), pipe) for process, pipe in started]


class Member:
    """One rank of a group that can be reconfigured."""

    def __init__(self, port, rank, size):
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("groups", self.store),
            rank=rank,
            world_size=size,
            timeout=LIMIT,
            enable_reconfigure=True,
        )

    def reconfigure(self, name, rank, size):
        """Reconfigure the group with so many members, in the order of their ranks; `name` ends with its number."""
        self.store.set(f"{name}/{rank}", dist._get_reconfigure_handle())
        handles = [self.store.get(f"{name}/{each}").decode() for each in range(size)]
        dist._reconfigure(int(name.rpartition("-")[2]), handles, timeout=LIMIT).wait()


def outcome(function, *arguments):
    """Return what a function returns, or the name and the first line of its error."""
    try:
        return function(*arguments)
    except RuntimeError as error:  # all errors of c10d are
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def on_all(size, function, port):
    """Run a function in as many processes as it has ranks; return what those that send something have sent."""
    members = [forked(function, port, rank, size) for rank in range(size)]
    results = [pipe.recv() for _, pipe in members]
    for process, _ in members:
        process.kill()
        process.join()
    return [result for result in results if result is not None]


def shrunk(pipe, port, rank, size):
    """Use replicas that were made with the group before one rank has left it."""
    member = Member(port, rank, size)
    member.reconfigure("shrunk-1", rank, size)
    replicas = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    replicas(torch.ones(1, 1)).sum().backward()
    dist.barrier()
    if rank == size - 1:
        pipe.send(None)
        pipe.recv()
    member.reconfigure("shrunk-2", rank, size - 1)
    replicas.zero_grad()
    replicas(torch.full((1, 1), rank + 1.0)).sum().backward()
    pipe.send(
        {
            "size": dist.get_world_size(),
            "ranks": dist.get_process_group_ranks(dist.group.WORLD),
            "gradient": float(replicas.module.weight.grad),
        }
    )
    pipe.recv()


def swapped(pipe, port, rank, size):
    """Use a sharded model that was made with the group before the ranks were given anew."""
    from torch.distributed.fsdp import fully_shard

    member = Member(port, rank, size)
    member.reconfigure("swapped-1", rank, size)
    shards = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        shards.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    fully_shard(shards, reshard_after_forward=True)
    before = shards(torch.eye(2)).tolist()
    dist.barrier()
    member.reconfigure("swapped-2", size - 1 - rank, size)
    pipe.send([before, shards(torch.eye(2)).tolist()])
    pipe.recv()


def without_peer(pipe, port, rank, size):
    """Be reconfigured with the handles that arrive, after a first time with the other rank."""
    member = Member(port, rank, size)
    member.reconfigure("alone-1", rank, size)
    pipe.send(dist._get_reconfigure_handle())
    pipe.send(outcome(lambda: dist._reconfigure(2, pipe.recv(), timeout=SHORT).wait()))
    pipe.recv()


def newcomer(pipe, port):
    """Be a member whose store is that of the next round."""
    Member(port, 1, 2)
    pipe.send(dist._get_reconfigure_handle())
    dist._reconfigure(2, pipe.recv(), timeout=LIMIT)


def old_store():
    """Return how a reconfiguration ends whose newcomer has another store, and one whose store is gone."""
    (host, port, _), (_, other_port, _) = found = stores(2)
    members = [forked(without_peer, port, rank, 2) for rank in range(2)]
    handles = [pipe.recv() for _, pipe in members]
    new, new_pipe = forked(newcomer, other_port)
    mixed = [handles[0], new_pipe.recv()]
    new_pipe.send(mixed)
    (_, first), (_, second) = members
    first.send(mixed)
    other = first.recv()
    host.kill()
    host.join()
    second.send(handles)
    gone = second.recv()
    for process in (*(member for member, _ in members), new, *(server for server, _, _ in found)):
        process.kill()
        process.join()
    return {"another store": other, "no store": gone}


def main():
    torch.set_num_threads(1)
    found = stores(2)
    result = {
        "shrunk": on_all(3, shrunk, found[0][1]),
        "swapped": on_all(2, swapped, found[1][1]),
        **old_store(),
    }
    for process, _, _ in found:
        process.kill()
        process.join()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
