"""SCENARIO K7 under torch: its own decorator, and a collective that the first failure breaks."""

import json

from report_kit import blocks


def test_torch_record_and_a_real_collective(elastic, script):
    path = script(
        "import os\nimport torch\nimport torch.distributed as dist\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n"
        "    dist.init_process_group('gloo')\n"
        "    x = torch.ones(1) * dist.get_rank()\n    dist.all_reduce(x)\n"
        "    assert x.item() == 1.0\n"
        "    if dist.get_rank() == 1:\n        raise RuntimeError('rank one is done for')\n"
        "    dist.all_reduce(x)\n"
        "main()\n"
    )
    agent = elastic("--nproc-per-node", "2", path)
    assert agent.wait(90) == 1
    incident = agent.incident()
    assert incident["first"]["exit"]["global_rank"] == 1, json.dumps(incident, indent=1)
    assert "RuntimeError: rank one is done for" in "\n".join(blocks(agent.err))
