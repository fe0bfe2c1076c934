"""Samplers under real loaders, torch's and torchdata's, whose workers draw ahead."""

import pytest

from elastic_train import Checkpointer, ElasticSampler
from support import lacks

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),  # loaders fork beside torch's threads
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 under torch 2.13
]
LENGTH = 40


@pytest.fixture(params=["torch", "torchdata"])
def loader(request):
    """A function from a sampler to a loader with two workers."""
    if request.param == "torch":
        from torch.utils.data import DataLoader as Loader
    else:
        Loader = stateful_loader()
    return lambda sampler: Loader(range(LENGTH), batch_sampler=sampler, num_workers=2, prefetch_factor=3)


def stateful_loader():
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        lacks("torchdata", install="pip install torchdata")
    return StatefulDataLoader


def test_a_state_is_that_of_what_training_is_done_with(loader, tmp_path):
    checkpoints = Checkpointer(tmp_path)
    sampler = ElasticSampler(LENGTH, batch_size=4, seed=2)
    seen = []
    for step, batch in enumerate(loader(sampler)):
        seen += batch.tolist()
        sampler.advance()
        if step == 2:
            checkpoints.save({"sampler": sampler}, step=step)
            break
    assert len(seen) == 12
    for rank in range(3):  # more ranks go on
        again = ElasticSampler(LENGTH, batch_size=2, seed=2, rank=rank, world_size=3)
        checkpoints.load({"sampler": again})
        seen += [index for batch in (loader(again) if rank == 0 else again) for index in map(int, batch)]
    assert sorted(seen) == list(range(LENGTH))


class Stream:
    """A data set without a length or an index, as torchdata's loader can resume it."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while self.next < LENGTH:
            self.next += 1
            yield self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def test_a_stream_is_resumed_by_torchdata_at_the_same_world_size(tmp_path):
    from torch.utils.data import IterableDataset

    Loader = stateful_loader()
    stream = type("IterableStream", (Stream, IterableDataset), {})
    loader, checkpoints = Loader(stream(), batch_size=4), Checkpointer(tmp_path, files="each")
    seen = []
    for step, batch in enumerate(loader):
        seen += batch.tolist()
        if step == 2:
            checkpoints.save({"loader": loader}, step=step)
            break
    again = Loader(stream(), batch_size=4)
    checkpoints.load({"loader": again})
    seen += [index for batch in again for index in batch.tolist()]
    assert seen == list(range(LENGTH))
