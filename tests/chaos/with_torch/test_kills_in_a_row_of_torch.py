"""Kills in a row of workers that meet by gloo, each as soon as all have met: spares are rarely ready again."""

import pytest

from kills_in_a_row import KILLS, SCRIPT, survives_kills_in_a_row

MEETS = "dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))"


@pytest.mark.parametrize(
    "kills", [3, pytest.param(KILLS, marks=[pytest.mark.chaos_full, pytest.mark.timeout(900)], id="25")]
)
def test_each_kill_is_one_restart_also_where_spares_are_not_ready_again(elastic, script, tmp_path, kills):
    path = script(SCRIPT.format(imports="import torch\nimport torch.distributed as dist", meets=MEETS))
    survives_kills_in_a_row(elastic, path, tmp_path, "--standby", kills=kills, within_s=100.0)
