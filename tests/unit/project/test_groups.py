"""Tests of one group are run by one process: pytest and its xdist plugin must agree about how a group is named."""

import os

import pytest


@pytest.mark.xdist_group("groups")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_a_test_of_a_group_bears_its_name_where_tests_are_given_out(request):
    if request.config.option.loadgroup:
        assert request.node.nodeid.endswith("@groups")
