"""A rank that takes commands: it joins a group, trains with `State`, dies where it is told to, and shows its state."""

import faulthandler
import hashlib
import json
import logging
import os
import signal
import sys
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elastic_warm as warm
from elastic_warm import channel as warm_channel
from elastic_warm import groups, host_copy, objects, resharding, sync

DTYPES = (torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64)


class Replicated:
    """Data-parallel training of a small model, with all that has a state, and random numbers of each rank."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)
        )
        self.model[0].bias.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=1000)
        odd = {str(dtype): torch.ones(5).to(dtype) for dtype in DTYPES}
        odd |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "turned": torch.arange(6.0).reshape(2, 3).t()}
        self.state = warm.State(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            losses=[],
            odd=odd,
            table=torch.zeros(3),
            step=0,
            **options,
        )

    def begin(self, rank):
        """Each rank has its own random numbers, as scripts seed them."""
        if self.state.step == 0 and not self.state.losses:
            torch.manual_seed(100 + rank)

    def join(self):
        self.net = DistributedDataParallel(self.model)

    def leave(self):
        self.net = None

    def step(self, rank, die):
        state = self.state
        generator = torch.Generator().manual_seed(1000 * state.step + rank)
        self.optimizer.zero_grad()
        loss = self.net(torch.randn(8, 6, generator=generator)).square().mean()
        if die == "before backward":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if die == "after backward":
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.step()
        self.scheduler.step()
        state.losses = [*state.losses[-3:], round(float(self.model[3].weight.detach().sum()), 6)]
        state.table[state.step % 3] += 1
        state.odd["scalar"].add_(1)
        state.step += 1


class Sharded:
    """Each rank trains its own parameters, and the ranks meet in each step."""

    def __init__(self, width=5, **options):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(5, width)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.state = warm.State(model=self.model, optimizer=self.optimizer, step=0, sharded=True, **options)

    def begin(self, rank):
        if self.state.step == 0:
            torch.manual_seed(100 + rank)

    def join(self):
        pass

    def leave(self):
        pass

    def step(self, rank, die):
        state = self.state
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(3, 5)).square().mean()
        loss.backward()
        together = loss.detach().clone()
        if die == "before backward":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(together)
        if die == "after backward":
            os.kill(os.getpid(), signal.SIGKILL)
        for parameter in self.model.parameters():
            parameter.grad.mul_(together)
        self.optimizer.step()
        state.step += 1


class Rows(torch.optim.SGD):
    """An optimizer with a state that is the same on all ranks, though its parameters are sharded."""

    def step(self, closure=None):
        from torch.distributed.tensor import DTensor, Replicate

        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if "rows" not in state:
                rows, mesh = torch.zeros(parameter.shape[0]), parameter.device_mesh
                state["rows"] = DTensor.from_local(rows, mesh, [Replicate()] * mesh.ndim, run_check=False)
            state["rows"]._local_tensor.add_(1)


class Fsdp:
    """FSDP2: the model is made anew in each round, as its mesh belongs to the group."""

    def __init__(self, optimizer="AdamW", **options):
        self.made = {"AdamW": torch.optim.AdamW, "rows": Rows}[optimizer]
        self.state = warm.State(model=None, optimizer=None, step=0, random=False, **options)
        self.model = None

    def begin(self, rank):
        pass

    def join(self, mesh=None):
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import init_device_mesh

        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
        mesh = mesh or [dist.get_world_size()]
        names = ("copies", "shards")[-len(mesh) :]
        fully_shard(self.model, mesh=init_device_mesh("cpu", tuple(mesh), mesh_dim_names=names))
        self.optimizer = self.made(self.model.parameters(), lr=0.1)
        self.state.model, self.state.optimizer = self.model, self.optimizer

    def leave(self):
        pass

    def step(self, rank, die):
        self.optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * self.state.step + rank)
        loss = self.model(torch.randn(4, 6, generator=generator)).square().sum()
        if die == "before backward":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if die == "after backward":
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.step()
        self.state.step += 1


SHAPES = {"even": (8, 4), "uneven": (5, 3), "short": (2, 7), "deep": (3, 2, 5)}


class Placed:
    """Tensors on any mesh, with any placements, whose values are known: no collective takes part in their training."""

    def __init__(self, **options):
        self.state = warm.State(model=None, optimizer=None, table=torch.zeros(3), note="", step=0, **options)

    def begin(self, rank):
        if self.state.step == 0:
            torch.manual_seed(100 + rank)

    def join(self, mesh=None, placements=("S0",), order=None, of=None):
        from torch.distributed.tensor import DeviceMesh
        from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

        mesh = mesh or [dist.get_world_size()]
        self.mesh = DeviceMesh("cpu", torch.tensor(order or range(dist.get_world_size())).reshape(mesh))
        if of is not None:  # a dimension of the mesh
            self.mesh = DeviceMesh("cpu", self.mesh.mesh, mesh_dim_names=("a", "b"))["ab"[of]]
        kinds = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1), "T0": _StridedShard(0, split_factor=2)}
        self.placements = [kinds[each] for each in placements]
        self.model = torch.nn.Module()
        for number, (name, shape) in enumerate(SHAPES.items()):
            values = torch.zeros(shape, dtype=(torch.float32, torch.bfloat16)[number % 2])
            parameter = torch.nn.Parameter(self.placed(values))
            self.model.register_parameter(name, parameter)
        self.model.register_buffer("scale", torch.tensor(1.0))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, foreach=False)
        self.state.model, self.state.optimizer = self.model, self.optimizer

    def placed(self, values):
        from torch.distributed.tensor import DTensor, Replicate

        copies = DTensor.from_local(values, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        return copies.redistribute(placements=self.placements)

    def leave(self):
        pass

    def step(self, rank, die):
        self.state.step += 1
        for number, parameter in enumerate(self.model.parameters()):
            generator = torch.Generator().manual_seed(1000 * self.state.step + number)
            whole = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = self.placed(whole)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.step()
        self.model.scale.add_(1)
        self.state.note = "x" * rank  # of another length on each rank
        self.state.table[self.state.step % 3] += 1


class Cut(BaseException):
    """An interrupt, as that of the end of a round."""


def cut_before_drop():
    """Interrupt the main thread when it is about to forget a commit in whose place it has filled the other slot."""
    drop, keep_only = host_copy.Slot.drop, host_copy.HostCopies.keep_only

    def cut(slot):
        host_copy.Slot.drop = drop
        raise Cut

    def keep(copies, key):  # the same call forgets older commits, before
        host_copy.Slot.drop = drop
        keep_only(copies, key)
        host_copy.Slot.drop = cut

    host_copy.HostCopies.keep_only = keep


def torn(count):
    """Die in a copy, after some of its tensors."""
    copy_all = host_copy.copy_all

    def cut(targets, sources):
        copy_all(targets[:count], sources[:count])
        os.kill(os.getpid(), signal.SIGKILL)

    host_copy.copy_all = cut


def digest(state):
    """Return a digest of all bits of a state but its random state."""
    found = hashlib.sha256()
    for name, value in state.parts().items():
        flat = objects.taken(value, name)
        found.update(json.dumps([name, flat.tree]).encode())
        for tensor in (*flat.common, *flat.own):
            data = tensor.detach().contiguous().reshape(-1)
            found.update(bytes(data.view(torch.uint8).tolist()))
    return found.hexdigest()


class Worker:
    def __init__(self, kind, options):
        self.loads = options.pop("loads", None)
        if self.loads is not None:
            options["load"] = self.load
        kinds = {"replicated": Replicated, "sharded": Sharded, "fsdp": Fsdp, "placed": Placed}
        self.training = kinds[kind](**options)
        self.state = self.training.state

    def load(self):
        if self.loads < 0:
            return False
        self.state.step = self.loads
        return True

    def has_checkpoint(self, *, step):
        self.loads = step

    def cut_round(self, **place):
        """Be interrupted where the new round's part has just been kept."""
        keep_only = host_copy.HostCopies.keep_only
        cut_before_drop()
        try:
            return self.round(**place)
        except Cut:
            return {"cut": True}
        finally:
            host_copy.HostCopies.keep_only = keep_only

    def round(self, *, store, rank, size, node=0, **layout):
        os.environ["GROUP_RANK"] = str(node)
        self.rank = rank
        self.generation = groups.Generation()
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        self.training.begin(rank)
        self.training.join(**layout)
        try:
            synced = self.state.sync()
        except BaseException:
            self.leave()
            raise
        return {"source": synced.source, "step": synced.step, "received": synced.received}

    def train(self, *, until, die_at=None, die=None, after=0):
        while self.state.step < until:
            dies = die if die_at == self.state.step else None
            try:
                self.training.step(self.rank, dies)
                if dies == "in commit":
                    torn(after)
                self.state.commit()
                if dies == "after commit":
                    os.kill(os.getpid(), signal.SIGKILL)
            except RuntimeError as err:
                self.leave()
                return {"left": self.state.step, "by": str(err)}
        return {"step": self.state.step}

    def spoil(self):
        """Change what a step changes, as one that is cut in the middle."""
        with torch.no_grad():
            for parameter in self.training.model.parameters():
                getattr(parameter, "_local_tensor", parameter).add_(1)
        self.state.step += 5

    def die_while_receiving(self):
        def cut(channel, sender, buckets):
            dist.broadcast(torch.empty(next(iter(buckets)).size, dtype=torch.uint8), sender)
            os.kill(os.getpid(), signal.SIGKILL)

        warm_channel.Channel.broadcast = cut

    def restore(self):
        self.state.restore()

    def leave(self):
        self.training.leave()
        if dist.is_initialized():
            self.generation.shut()  # a sharded model keeps the groups, and other ranks would wait for this one
            dist.destroy_process_group()

    def digest(self):
        return digest(self.state)

    def whole(self):
        """Return a digest of all tensors as a whole, by torch's own collectives. Called: on all ranks."""
        self.state._partners.wait()  # the copies of the last commit are whole
        self.known = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in self.tensors()]
        found = hashlib.sha256(str([self.state.step, len(self.known)]).encode())
        for tensor in self.known:
            found.update(bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()))
        return found.hexdigest()

    def tensors(self):
        model, optimizer = self.training.model, self.training.optimizer
        states = [optimizer.state.get(parameter, {}).values() for parameter in model.parameters()]
        return [*model.state_dict().values(), *(each for state in states for each in state)]

    def has_its_parts(self):
        """Return whether each local part is what torch makes of the tensor as it was in `whole`."""
        local = [(each, getattr(each, "_local_tensor", each)) for each in self.tensors()]
        return len(local) == len(self.known) and all(
            torch.equal(mine, self.training.placed(known).to_local() if each is not mine else known)
            for (each, mine), known in zip(local, self.known, strict=True)
        )

    def limit(self, *, size):
        """Send shards in messages of so many bytes."""
        resharding._LIMIT = size

    def die_while_shards_travel(self):
        def cut(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        warm_channel.Channel.exchange = cut

    def gather(self, *, lengths):
        channel = warm_channel.Channel()
        found = channel.gather(bytes([65 + channel.rank]) * lengths[channel.rank])
        return [each.decode() for each in found]

    def random(self):
        return hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()


def main():
    faulthandler.enable()
    logging.basicConfig(format="%(message)s")
    if os.environ.get("APART") == "1":  # as a large state: its tensors travel after their description
        sync._TOGETHER = 0
    worker = Worker(sys.argv[1], json.loads(sys.argv[2]))
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = getattr(worker, name)(**arguments)
        except Exception as err:  # noqa: BLE001  # the test looks at it
            answer = {"error": f"{type(err).__name__}: {err}"}
            traceback.print_exc()
            worker.leave()  # so that the others do not wait for it
        print(json.dumps(answer), flush=True)


main()
