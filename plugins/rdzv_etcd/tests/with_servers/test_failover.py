"""Three members: what lasts when the leader dies or hangs, and how long the loss of the majority keeps anybody."""

import time

import pytest

from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendUnavailableError, OutcomeUnknownError
from elastic_rdzv_etcd.coding import b64
from patience import kept
from support import wait_for
from time_limits import OVERRUN_S

KEY = b64(b"/elastic/key")
FAILURES = (BackendUnavailableError, OutcomeUnknownError)
LONGEST_S = 5.5
"""No call lasts longer."""


def put(gateway, wait, value="x"):
    return gateway.ask("kv/put", {"key": KEY, "value": b64(value.encode())}, wait=wait, writes=True)


def get(gateway, wait):
    return gateway.ask("kv/range", {"key": KEY}, wait=wait, writes=False)["kvs"][0]


def watch(gateway, wait, **more):
    return gateway.stream([{"key": KEY} | more], wait=wait)


def attached(make_gateway, cluster, member, wait):
    """Return a client that talks to this member first."""
    others = [other for other in cluster.members if other is not member]
    gateway = make_gateway(",".join(each.endpoint for each in (member, *others)))
    gateway.open(wait)
    return gateway


def succeeds(call):
    """Return when a call succeeds, and how long that took; none of its failures may last too long."""
    began_s = time.monotonic()

    def tried():
        tried_s = time.monotonic()
        try:
            return call()
        except FAILURES:
            return None
        finally:
            kept(time.monotonic() - tried_s, LONGEST_S)

    wait_for(tried, within_s=15)
    return time.monotonic() - began_s


@pytest.fixture
def wait():
    return WaitBudget.lasting(60)


@pytest.mark.parametrize("at_the_leader", [True, False], ids=["connected to it", "connected to another"])
@pytest.mark.parametrize("way", ["kill", "pause"])
def test_the_leader_is_gone(make_gateway, etcd_cluster, wait, way, at_the_leader):
    leader = etcd_cluster.leader()
    member = leader if at_the_leader else etcd_cluster.followers(leader)[0]
    gateway = attached(make_gateway, etcd_cluster, member, wait)
    put(gateway, wait)
    stream = watch(gateway, wait)
    seen = stream.revision
    getattr(leader, way)()
    kept(succeeds(lambda: put(gateway, wait, "after")), 6)
    assert get(gateway, wait)["value"] == b64(b"after")
    try:
        events = stream.events(10, wait)
    except BackendUnavailableError:  # it was at the leader, or ended with a request that was lost
        stream = watch(gateway, wait, start_revision=str(seen + 1))
        events = stream.events(10, wait)
    assert events[-1]["value"] == b"after"  # nothing is missed


def test_a_read_does_not_wait_long_for_a_member_that_hangs(make_gateway, etcd_cluster, wait):
    follower = etcd_cluster.followers()[0]
    gateway = attached(make_gateway, etcd_cluster, follower, wait)
    put(gateway, wait)
    follower.pause()
    kept(succeeds(lambda: get(gateway, wait)), 2.5)
    kept(succeeds(lambda: get(gateway, wait)), 0.5)  # the next one was asked at once
    kept(succeeds(lambda: watch(gateway, wait)), 0.5)


def test_without_a_majority_nothing_is_served_and_nobody_waits_long(make_gateway, etcd_cluster, wait):
    gateway = make_gateway(etcd_cluster.endpoint)
    put(gateway, wait)
    lost = etcd_cluster.stop_majority()
    left = next(member for member in etcd_cluster.members if member.process)

    def hopeless():
        try:
            put(gateway, wait)
        except OutcomeUnknownError:
            return None  # the one that is left does not know yet
        except BackendUnavailableError as error:
            return error if "has no leader" in str(error) else None
        raise AssertionError("two members are gone")

    error = wait_for(hopeless)
    assert left.endpoint in str(error)
    for call in (lambda: get(gateway, wait), lambda: watch(gateway, wait), lambda: gateway.open(wait)):
        began_s = time.monotonic()
        with pytest.raises(BackendUnavailableError, match="no member of the cluster serves us"):
            call()
        kept(time.monotonic() - began_s, 1)
    for member in lost:
        member.launch()
    succeeds(lambda: put(gateway, wait))


def test_a_majority_that_hangs_keeps_nobody_longer_than_the_limit(make_gateway, etcd_cluster, wait):
    leader = etcd_cluster.leader()
    hanging = [leader, etcd_cluster.followers(leader)[0]]
    (left,) = (member for member in etcd_cluster.members if member not in hanging)
    gateway = attached(make_gateway, etcd_cluster, left, wait)
    stream = watch(gateway, wait)
    for member in hanging:
        member.pause()
    began_s = time.monotonic()
    with pytest.raises(BackendUnavailableError):
        stream.events(20, wait)  # the one that is left knows that it leads nowhere
    kept(time.monotonic() - began_s, 5)
    for call in (put, get, watch):
        began_s = time.monotonic()
        with pytest.raises(FAILURES):
            call(gateway, WaitBudget.lasting(1))
        kept(time.monotonic() - began_s, 1 + OVERRUN_S)
    for member in hanging:
        member.resume()
    succeeds(lambda: put(gateway, wait))


def test_members_that_come_back_are_used_again(make_gateway, etcd_cluster, wait):
    gateway = make_gateway(etcd_cluster.endpoint)
    for at, member in enumerate(etcd_cluster.members):  # one after the other, as an upgrade does
        member.stop()
        succeeds(lambda at=at: put(gateway, wait, str(at)))
        member.start()
    assert get(gateway, wait)["value"] == b64(b"2")
