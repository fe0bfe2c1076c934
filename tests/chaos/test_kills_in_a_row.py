"""25 kills in a row: each comes as soon as the workers of the last restart are ready, and costs one restart."""

import pytest

from kills_in_a_row import SCRIPT, survives_kills_in_a_row


@pytest.mark.parametrize("options", [(), ("--standby", "--standby-imports", "json")], ids=["", "standby"])
@pytest.mark.parametrize("workers", [2, 8])
def test_each_kill_is_one_restart_that_names_the_killed_rank(elastic, script, tmp_path, workers, options):
    path = script(SCRIPT.format(imports="", meets=""))
    survives_kills_in_a_row(elastic, path, tmp_path, *options, workers=workers)
