"""A rendezvous through a directory that all nodes share, without a server of its own."""

import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from elastic_core import api
from elastic_core.api import stores


class Content(msgspec.Struct):
    """The content of one run. Members and the ends of their leases are by incarnation, in order of arrival."""

    revisions: stores.Revisions = stores.Revisions()
    members: dict[str, stores.Member] = {}
    ends_s: dict[str, float] = {}
    documents: dict[str, stores.Document] = {}
    called_s: float = 0.0
    keep_s: float = 86400.0

    def move(self, *topics: str) -> None:
        """Raise revisions; the first change makes the birth."""
        raised = {topic: getattr(self.revisions, topic) + 1 for topic in topics}
        birth = self.revisions.birth or os.urandom(8).hex()
        self.revisions = msgspec.structs.replace(self.revisions, birth=birth, **raised)

    def put(self, incarnation: str, record: bytes) -> int:
        """Store a member's record, and return its seat. A new member's number is the revision of its arrival."""
        self.move("members")
        number = self.members[incarnation].seat if incarnation in self.members else self.revisions.members
        self.members[incarnation] = stores.Member(seat=number, incarnation=incarnation, record=record)
        return number

    def has(self, seat: stores.Seat) -> bool:
        """Return whether a seat is taken; number and incarnation must both be right."""
        return seat.incarnation in self.members and self.members[seat.incarnation].seat == seat.number

    def remove(self, now_s: float, *leaving: str) -> None:
        """Remove members with an ended lease, and members that leave."""
        for name in [name for name, end_s in self.ends_s.items() if end_s <= now_s or name in leaving]:
            del self.members[name], self.ends_s[name]
            self.move("members", "departures")

    def called(self, now_s: float, ttl_s: float) -> None:
        """Record that a member is alive. If none called for long, or time went back, extend all leases first."""
        if not 0 <= now_s - self.called_s < ttl_s * 2 / 3:
            least_s, back = now_s + ttl_s, now_s < self.called_s
            self.ends_s = {name: least_s if back else max(end_s, least_s) for name, end_s in self.ends_s.items()}
        self.called_s = now_s
        self.remove(now_s)


class FileStore(api.CoordinationStore):
    """Keeps a run's content in one file, which the holder of the lock beside it replaces as a whole."""

    api_version = 1
    options = (api.OptionSpec(name="poll", type="duration", least=0.01, default=0.1, help="time between two reads"),)

    def __init__(self, settings: api.RendezvousSettings) -> None:
        """Check the endpoint and the options; touch no file."""
        super().__init__(settings)
        if not settings.endpoint.startswith("/"):
            what = f"backend 'file' needs the absolute path of a directory, not {settings.endpoint!r}"
            raise api.ConfigError(what, hint="--rdzv-endpoint /shared/rendezvous")
        self._poll_s = settings.option("poll", float)
        self._file = Path(settings.endpoint, hashlib.sha256(os.fsencode(settings.run_id)).hexdigest(), "content.json")

    @property
    def where(self) -> str:
        """Return the directory, for people."""
        return f"file at {self.settings.endpoint}"

    def connect(self, *, wait: api.WaitBudget) -> str:
        """Check that the directory exists, and can be written and locked."""
        with self._request(wait):
            return ""  # a directory has no address: the core finds this host's

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: api.WaitBudget) -> stores.Seat:
        """Give a member the next seat, or the one that it has."""
        with self._request(wait) as (content, now_s):
            content.called(now_s, ttl_s)
            number = content.put(incarnation, record)
            content.ends_s[incarnation] = now_s + ttl_s
            return stores.Seat(number=number, incarnation=incarnation, ahead=list(content.members).index(incarnation))

    def update(self, seat: stores.Seat, record: bytes, *, wait: api.WaitBudget) -> bool:
        """Replace the record of a member."""
        with self._request(wait) as (content, now_s):
            if kept := content.has(seat) and content.ends_s[seat.incarnation] > now_s:
                content.put(seat.incarnation, record)
            return kept

    def renew(self, seat: stores.Seat, *, ttl_s: float, wait: api.WaitBudget) -> stores.Renewal | None:
        """Extend a lease."""
        with self._request(wait) as (content, now_s):
            if content.has(seat):
                content.called(now_s, ttl_s)
            if not content.has(seat):
                return None
            content.ends_s[seat.incarnation] = now_s + ttl_s
            ahead = list(content.members).index(seat.incarnation)
            others = [end_s - now_s for name, end_s in content.ends_s.items() if name != seat.incarnation]
            return stores.Renewal(ahead=ahead, live=len(others) + 1, next_expiry_s=min(others, default=None))

    def withdraw(self, seat: stores.Seat, *, wait: api.WaitBudget) -> None:
        """Remove a member."""
        with self._request(wait) as (content, _):
            if content.has(seat):
                content.remove(0, seat.incarnation)

    def members(self, *, wait: api.WaitBudget) -> stores.Members:
        """Return the live members."""
        with self._request(wait) as (content, now_s):
            content.remove(now_s)
            return stores.Members(revision=content.revisions.members, members=tuple(content.members.values()))

    def load(self, key: str, *, wait: api.WaitBudget) -> stores.Document | None:
        """Return a document."""
        with self._request(wait) as (content, _):
            return content.documents.get(key)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: api.WaitBudget) -> stores.Swapped:
        """Replace a document if its version is the expected one."""
        with self._request(wait) as (content, _):
            current = content.documents.get(key)
            applied = (current.version if current else None) == expect
            if applied:
                content.documents[key] = current = stores.Document(value=new, version=os.urandom(8).hex())
                content.keep_s = keep_s
                content.move(*({key} & {stores.ROUND_KEY, stores.CONTROL_KEY}))
            return stores.Swapped(applied=applied, current=current)

    def watch(
        self, since: stores.Revisions, topics: Collection[stores.Topic], *, timeout_s: float, wait: api.WaitBudget
    ) -> stores.Watched:
        """Read repeatedly, without a lock: the file is only replaced as a whole."""
        end = api.WaitBudget.lasting(timeout_s)
        while True:
            with self._translated():
                seen = stores.compare(since, self._read().revisions, topics)
            if seen.changed or seen.reset or end.remaining_s() <= 0:
                return seen
            wait.sleep(end.remaining_s(self._poll_s))

    @contextmanager
    def _request(self, wait: api.WaitBudget) -> Iterator[tuple[Content, float]]:
        """Hold the lock; give the content and the file server's time; write the changed content."""
        wait.check()
        with self._translated():
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            with self._file.with_name("lock").open("ab") as lock:
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    wait.sleep(0.01)
                last_call_s = os.fstat(lock.fileno()).st_mtime
                os.utime(lock.fileno())
                now_s = os.fstat(lock.fileno()).st_mtime
                content = self._read()
                before = msgspec.json.encode(content)
                if now_s - last_call_s >= content.keep_s:
                    content = Content()
                yield content, now_s
                if (after := msgspec.json.encode(content)) != before:
                    self._replace(after)

    def _read(self) -> Content:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Content)
        except FileNotFoundError:
            Path(self.settings.endpoint).stat()  # raises if the whole directory is missing
            return Content()

    def _replace(self, raw: bytes) -> None:
        """Replace the content; a process that is killed meanwhile leaves the old or the new content."""
        new = self._file.with_suffix(".new")
        with new.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        try:
            new.replace(self._file)
        except OSError as err:  # perhaps only the reply was lost
            raise stores.OutcomeUnknownError(f"{self.where}: {err.strerror}") from err

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the file system into errors of the contract."""
        try:
            yield
        except (PermissionError, NotADirectoryError, msgspec.DecodeError) as err:
            what = f"{self.where}: {getattr(err, 'strerror', err)}"
            raise stores.BackendRefusedError(what, hint="a directory that this user may write on every node") from err
        except OSError as err:
            raise stores.BackendUnavailableError(f"{self.where}: {err.strerror}", hint="check its mount") from err
