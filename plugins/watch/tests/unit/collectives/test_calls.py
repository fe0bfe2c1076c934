"""The call in which a worker waits, from the frames that torch 2.13 shows."""

import os

import pytest

from elastic_watch.collectives import calls
from elastic_watch.collectives.calls import call_of, source_line

SITE = "/v/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
WRAPPER = (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper", "")
MAIN = ("/u/train.py", 20, "<module>", "")


def user(text, function="step"):
    return ("/u/train.py", 12, function, text)


def c10d(*functions):
    return [frame for function in functions for frame in (WRAPPER, (C10D, 100, function, ""))]


def library(path, function, text=""):
    return (f"{SITE}/{path}", 100, function, text)


STACKS = {
    "a collective": ([MAIN, *c10d("all_reduce")], "all_reduce"),
    "an object collective, named for the user's call": (
        [MAIN, *c10d("all_gather_object", "all_gather")],
        "all_gather_object",
    ),
    "barrier": ([MAIN, *c10d("barrier")], "barrier"),
    "recv": ([MAIN, *c10d("recv")], "recv"),
    "monitored_barrier": ([MAIN, (C10D, 5435, "monitored_barrier", "")], "monitored_barrier"),
    "new_group": (
        [
            MAIN,
            WRAPPER,
            *((C10D, 1, name, "") for name in ("new_group", "_new_group_with_tag", "_new_process_group_helper")),
        ],
        "new_group",
    ),
    "init_process_group in the rendezvous": (
        [MAIN, *c10d("init_process_group"), library("torch/distributed/rendezvous.py", "_create_c10d_store")],
        "init_process_group",
    ),
    "the coalescing manager": (
        [MAIN, ("/v/lib/python3.11/contextlib.py", 144, "__exit__", ""), (C10D, 2935, "_coalescing_manager", "")],
        "coalescing_manager",
    ),
    "wait_tensor of functional collectives": (
        [
            MAIN,
            library("torch/distributed/_functional_collectives.py", "trigger_wait"),
            library("torch/distributed/_functional_collectives.py", "wait_tensor"),
            library("torch/_ops.py", "__call__"),
            library("torch/_library/autograd.py", "autograd_impl"),
        ],
        "wait_tensor",
    ),
    "FSDP waits for parameters": (
        [MAIN, library("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", "wait_for_unshard")],
        "wait_for_unshard",
    ),
    "DDP's constructor": (
        [
            MAIN,
            library("torch/nn/parallel/distributed.py", "__init__"),
            library("torch/distributed/utils.py", "_verify"),
        ],
        "verify",
    ),
    "autograd's engine": (
        [
            MAIN,
            library("torch/_tensor.py", "backward"),
            library("torch/autograd/__init__.py", "backward"),
            library("torch/autograd/graph.py", "_engine_run_backward"),
        ],
        calls.BACKWARD,
    ),
    "the user's hook in autograd's engine": (
        [MAIN, library("torch/autograd/graph.py", "_engine_run_backward"), user("time.sleep(9)", "hook")],
        calls.BACKWARD,
    ),
    "a wait in the user's hook in autograd's engine": (
        [MAIN, library("torch/autograd/graph.py", "_engine_run_backward"), user("work.wait()", "hook")],
        "wait",
    ),
    "a collective in a hook of autograd's engine": (
        [MAIN, library("torch/autograd/graph.py", "_engine_run_backward"), *c10d("all_reduce")],
        "all_reduce",
    ),
    "Work.wait()": ([MAIN, user("work.wait()")], "wait"),
    "a list of Work.wait()": ([MAIN, user("[each.wait() for each in works]", "<listcomp>")], "wait"),
    "Work.wait() in an installed library": ([MAIN, library("megatron/p2p.py", "receive", "req.wait()")], "wait"),
    "a store": ([MAIN, user('store.get("key")')], "store.get"),
    "the default store": ([MAIN, user("_get_default_store().wait(['key'])")], "store.wait"),
    "a method that may be a store's": ([MAIN, user('kv.get("key")')], calls.UNKNOWN),
    "a method of a process group": ([MAIN, user("pg.allreduce([tensor])")], calls.UNKNOWN),
    "the user's code": ([MAIN, user("time.sleep(3600)")], ""),
    "the user's code in a file below a folder named torch": ([("/home/u/torch/train.py", 3, "f", "busy()")], ""),
    "the user's code, called by a module of a model in DDP": (
        [MAIN, library("torch/nn/parallel/distributed.py", "forward"), user("y = slow(x)", "forward")],
        "",
    ),
    "a layer of a model in DDP": (
        [
            MAIN,
            library("torch/nn/parallel/distributed.py", "forward"),
            library("torch/nn/modules/linear.py", "forward", "return F.linear(input, self.weight, self.bias)"),
        ],
        "",
    ),
    "a DataLoader": (
        [
            MAIN,
            library("torch/utils/data/dataloader.py", "_try_get_data", "data = self._data_queue.get(timeout=timeout)"),
            ("/v/lib/python3.11/multiprocessing/queues.py", 113, "get", "if not self._poll(timeout):"),
            ("/v/lib/python3.11/selectors.py", 415, "select", ""),
        ],
        "",
    ),
    "a debugger": ([MAIN, user("breakpoint()"), ("/v/lib/python3.11/pdb.py", 300, "interaction", "")], ""),
    "a write of a distributed checkpoint": (
        [MAIN, library("torch/distributed/checkpoint/filesystem.py", "_write_item", "stream.write(data)")],
        "",
    ),
    "a collective of a distributed checkpoint": (
        [MAIN, library("torch/distributed/checkpoint/utils.py", "gather_object"), *c10d("gather_object")],
        "gather_object",
    ),
    "an import of a module of torch.distributed": (
        [
            MAIN,
            library("torch/distributed/fsdp/__init__.py", "<module>"),
            ("<frozen importlib._bootstrap>", 1, "f", ""),
        ],
        "",
    ),
    "another module of torch.distributed": (
        [MAIN, library("torch/distributed/tensor/_ops/autogen.py", "_count")],
        calls.UNKNOWN,
    ),
    "no frames": ([], ""),
}


@pytest.mark.parametrize("stack", STACKS)
def test_call(stack):
    frames, call = STACKS[stack]
    assert call_of(frames, line_of=lambda file, line: "x = 1") == call


def test_the_line_is_read_if_the_frame_has_none(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("work = all_reduce()\n\n    work.wait()\n")
    assert source_line(str(script), 3) == "work.wait()"
    assert call_of([(str(script), 3, "<module>", "")]) == "wait"


def test_a_line_that_cannot_be_read_may_wait(tmp_path):
    assert call_of([(str(tmp_path / "train.py"), 3, "<module>", "")]) == calls.UNKNOWN


def test_a_file_system_that_hangs_does_not_hang_the_agent(tmp_path):
    pipe = tmp_path / "train.py"
    os.mkfifo(pipe)  # an open for reading waits for a writer
    assert source_line(str(pipe), 1) == ""
    os.close(os.open(pipe, os.O_RDWR))


def test_kinds_of_calls():
    assert [calls.in_collective(each) for each in ("all_reduce", "wait", "barrier")] == [True] * 3
    others = ("", "recv", "new_group", "store.get", "backward", "unknown", "monitored_barrier")
    assert [calls.in_collective(each) for each in others] == [False] * 7
    assert [calls.certain(each) for each in others] == [False, True, True, True, False, False, True]
    assert [calls.may_wait(each) for each in others] == [False, True, True, True, True, True, True]


THREADS = f"""Thread 0x00007fd6522296c0 (most recent call first):
  File "{C10D}", line 2806 in recv
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/u/pipeline.py", line 30 in receive
  File "/v/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fd6741e5b80 (most recent call first):
  File "/v/lib/python3.11/threading.py", line 327 in wait
  File "/u/train.py", line 12 in <module>
"""


def test_the_main_thread_waits_for_a_thread_that_waits_for_other_ranks():
    frames = [MAIN, ("/v/lib/python3.11/threading.py", 327, "wait", "")]
    assert call_of(frames, threads=THREADS) == "recv"
    assert call_of(frames, threads=THREADS.replace("distributed_c10d", "other")) == ""


def test_a_thread_does_not_count_while_the_main_thread_is_elsewhere():
    assert call_of([MAIN, user("time.sleep(9)")], threads=THREADS) == ""
