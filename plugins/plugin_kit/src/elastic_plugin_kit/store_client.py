"""A `CoordinationStore` whose requests a `StoreModel` answers, wherever that is kept."""

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar, TypeVar

from elastic_core.api import API_VERSION, CoordinationStore, WaitBudget
from elastic_core.api.stores import Document, Members, Renewal, Seat, Survey, Swapped
from elastic_plugin_kit.store_model import StoreModel

T = TypeVar("T")


class ModelledStore(CoordinationStore):
    """A client that makes each call a request to the model of its run; a subclass carries requests out."""

    api_version: ClassVar[int] = API_VERSION

    @abstractmethod
    def _request(self, name: str, work: Callable[[StoreModel, float], T], wait: WaitBudget) -> T:
        """Return what `work` returns for the model and the time of the clock that judges leases.

        `name` is the call's. Raises what `CoordinationStore` allows.
        """

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Take a seat, or find it."""
        return self._request(
            "enlist",
            lambda run, now_s: run.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s),
            wait,
        )

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace a record."""
        return self._request("update", lambda run, now_s: run.update(seat, record, now_s=now_s), wait)

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Extend a lease."""
        return self._request("renew", lambda run, now_s: run.renew(seat, ttl_s=ttl_s, now_s=now_s), wait)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Give a seat up."""
        self._request("withdraw", lambda run, now_s: run.withdraw(seat, now_s=now_s), wait)

    def members(self, *, wait: WaitBudget) -> Members:
        """Return the live members."""
        return self._request("members", lambda run, now_s: run.members(now_s=now_s), wait)

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return the members and documents; changes nothing."""
        return self._request("survey", lambda run, now_s: run.survey(keys, now_s=now_s), wait)

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return how long ago a swap has changed how long content is kept."""
        return self._request("keep_age_s", lambda run, now_s: run.keep_age_s(now_s=now_s), wait)

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document."""
        return self._request("load", lambda run, now_s: run.load(key, now_s=now_s), wait)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if it is the expected one."""
        return self._request(
            "swap", lambda run, now_s: run.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s), wait
        )
