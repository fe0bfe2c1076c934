"""What torch's own data loaders and processes pass on."""

LOADER = """\
    import torch
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, index):
            return open(f"/nowhere/{index:06}.jpg")
    if __name__ == "__main__":
        for batch in torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=2): pass
    """
SPAWN = """\
    import torch.multiprocessing as mp
    def main(rank):
        raise ValueError("bad shard")
    if __name__ == "__main__":
        mp.spawn(main, nprocs=1)
    """


def test_a_data_loaders_process_is_named_with_the_sentence_that_says_why(run):
    worker = run(LOADER)
    assert worker.judged().summary == "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/000000.jpg'"
    assert worker.record().causes[0][0] == "in DataLoader worker 0"
    assert worker.record().causes[0][3] == "train.py:5"


def test_a_spawned_process_is_named_with_the_exception_that_it_raised(run):
    worker = run(SPAWN)
    assert worker.judged().summary == "ProcessRaisedException, from ValueError: bad shard"
    assert worker.record().causes[0][0] == "in process 0"
    assert worker.record().causes[0][3] == "train.py:3"
