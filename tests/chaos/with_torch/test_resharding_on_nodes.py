"""The documented script with FSDP2 on two nodes: one is lost and comes back, and no bit of a committed step is lost."""

import re
import sys

import pytest

from page_kit import BLOCK, DOCS
from patience import patience
from support import wait_for

DIGEST = """
import hashlib, time

def digest():
    found = hashlib.sha256()
    tensors = [*state.model.parameters()]
    for parameter in state.model.parameters():
        tensors += state.optimizer.state.get(parameter, {}).values()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()[:16]
"""
SYNC = """state.sync()
    print(f"rank {rank} of {dist.get_world_size()} begins at {state.step}: {digest()}", flush=True)
"""
COMMIT = """print(f"commits {state.step}: {digest()}", flush=True)
        state.commit()
        time.sleep(0.02)
        last = torch.tensor(os.path.exists(os.environ["TEST_SHARED"] + "/finish"), dtype=torch.int64)
        dist.all_reduce(last)
        if last:
            break
"""


def documented():
    """The script of the page; it also prints a digest of all tensors, before a commit and at the start of a round."""
    page = (DOCS / "howto/warm-functions.md").read_text()
    (text,) = [block["text"] for block in BLOCK.finditer(page) if block["file"] == "sharded.py"]
    changes = {
        "STEPS = 20": "STEPS = 10**9",
        "state = warm.State(": DIGEST + "state = warm.State(",
        "state.sync()\n": SYNC,
        "state.commit()\n": COMMIT,
        "if state.step == 10 and": "if False and",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def begun(node, world_size):
    """The steps and digests with which ranks of rounds of that size have begun, in order."""
    found = re.findall(rf"rank \d+ of {world_size} begins at (\d+): ([0-9a-f]{{16}})", node.agent.out)
    return [(int(step), digest) for step, digest in found]


def steps(node):
    return {int(step): digest for step, digest in re.findall(r"commits (\d+): ([0-9a-f]{16})", node.agent.out)}


def until(node, world_size, above, rounds=1):
    """Wait until a round of that size has done steps after a step; return where its last round began."""

    def far():
        started = begun(node, world_size)
        last = max(steps(node), default=0)
        return len(started) >= 2 * rounds and started[-1][0] >= above and last > started[-1][0] + 5

    wait_for(far, within_s=60, what=f"steps of {world_size} ranks\n{node.agent.err}")
    return begun(node, world_size)[-1]


@pytest.mark.chaos_full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_run_goes_on_with_the_ranks_of_the_node_that_is_left_and_again_with_all(redis_run, lost):
    redis_run.script.write_text(documented())
    # On a busy machine a hook is turned off that has given the workers a variable, and they would not be kept.
    options = ("--nproc-per-node", "2", "--omp-threads", "1", "--timings", "-p", "no:control")
    options += ("--warm-timeout", f"{patience(10):g}", "--shutdown-timeout", f"{patience(30):g}")
    env = {"PYTHON_EXEC": sys.executable}  # interpreters of their own, which can be kept
    conf = f"last_call_timeout=30,lease_ttl={patience(4):g}"
    nodes = {name: redis_run.node(name, "1:2", *options, conf=conf, env=env) for name in "ab"}
    left = nodes["b" if lost == "a" else "a"]
    until(left, 4, 0)
    nodes[lost].power_off()
    step, digest = until(left, 2, 1)
    assert step >= 6, "from memory, and not from the start"
    known = steps(left) | steps(nodes[lost])
    assert digest == known[step]
    again = redis_run.node("c", "1:2", *options, conf=conf, env=env)
    back, digest = until(left, 4, step + 1, rounds=2)
    assert digest == steps(left)[back]
    assert begun(again, 4)[-1] == (back, digest)
    redis_run.all_end(left, again, within_s=60)
    assert "spawn (2 of 2 kept)" in left.agent.err
