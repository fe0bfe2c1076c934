"""The guard of a killed agent gives its seat in etcd back."""

from etcd_servers import etcd_server
from guard_kit import ETCD_STORE, Place, check_that_the_seat_is_given_back

__all__ = ["etcd_server"]


def test_a_killed_agents_seat_in_etcd_is_given_back_within_a_second(agent, etcd_server):
    place = Place(etcd_server, store=ETCD_STORE)
    try:
        check_that_the_seat_is_given_back(agent, place)
    finally:
        place.store.close()
