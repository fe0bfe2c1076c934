"""The password of a run's own store, from a token that its user has set, or from a secret that its host makes."""

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from elastic_core.api import ConfigError, RendezvousSettings
from elastic_rdzv_redis import munge
from elastic_rdzv_redis.secret_file import SecretFile, UnusableError

TOKEN_VARIABLE: Final = "ELASTIC_C10D_TOKEN"
FOLDER_VARIABLE: Final = "ELASTIC_C10D_SECRETS"
STEP_VARIABLE: Final = "SLURM_STEP_ID"
"""In a Slurm step, every user of the cluster knows the run id and the endpoint, so the store needs a secret."""

SOURCE: Final = "source"
SEALED: Final = "munge"
PROOF: Final = "proof"
"""The fields that the host publishes to all clients: the source of the password, the secret sealed by MUNGE, and a code
that proves that the host has the secret.
"""
OPEN: Final = "the run's id alone"
_FOLDER: Final = "~/.local/state/elastic/c10d"
_LONGEST: Final = 300


class Credentials:
    """The password of one run's store, for its host and for all nodes that connect to it.

    The host writes its secret to a file of the user (`secret_file`), and has MUNGE seal it for the user; the store
    publishes the sealed secret. A node needs one of the two. Neither can be found before the store has its port, and a
    node sends no password to a store that does not prove that it has the secret. Another process on the port therefore
    gets neither.

    Args:
        settings: The run's.
        environ: This process's variables.

    Raises:
        ConfigError: the token file can't be read, or is empty.
    """

    def __init__(self, settings: RendezvousSettings, environ: Mapping[str, str]) -> None:
        """Read the token; make nothing."""
        self._settings = settings
        path = settings.options.get("token_file")
        self._token = _token(path, environ)
        self._source = ("token_file" if path else f"${TOKEN_VARIABLE}") if self._token else OPEN
        wanted = settings.options.get("make_secret")
        self.made = not self._token and bool(environ.get(STEP_VARIABLE) if wanted is None else wanted)
        """Whether the host makes the secret."""
        self._strict = self.made and bool(settings.incarnation)  # a command follows what the host has
        self._folder = Path(environ.get(FOLDER_VARIABLE) or _FOLDER).expanduser()
        self._file: SecretFile | None = None
        self._secret = self._sealed = ""
        self._port = 0
        self._missing: list[str] = []
        self.password = ""
        """That which was right when the store was last asked, or that of the store which this node hosts."""
        self.notices: tuple[str, ...] = ()

    # --- the host

    def begin(self, port: int) -> str:
        """Return the password of a store that this node will host; other nodes can't find it yet.

        If a secret can't reach the other nodes, a token or the run id is used instead, and a line about the protection
        is set.
        """
        if not self.made:
            self.password = derive_password(self._settings.run_id, self._token)
            return self.password
        if port == self._port and self.password:  # the server has died: others know the password
            if self._file is not None and self._source != OPEN:
                with suppress(UnusableError):
                    self._file.prepare(self._secret)
            return self.password
        self._secret, self._port = self._secret or os.urandom(32).hex(), port
        self._file, self._sealed = SecretFile(self._folder, self._settings, port), ""
        where, missing = [], []
        try:
            self._file.prepare(self._secret)
            where.append(f"in the file {self._file}")
        except UnusableError as error:
            missing.append(str(error))
        try:
            self._sealed = munge.sealed("\n".join((*self._sealed_for(port), self._secret)))
            where.append("from munge")
        except munge.MungeError as error:
            missing.append(str(error))
        self._source = f"the secret {' or '.join(where)}" if where else OPEN
        if not where:
            self._opened(missing)
        self.password = derive_password(self._settings.run_id, self._secret if where else "")
        return self.password

    def publish(self) -> dict[str, str]:
        """Publish the secret for this user. Return the fields that all clients may read in the store."""
        if self._file is not None:
            with suppress(UnusableError):  # munge is left, or else others will say what they don't find
                self._file.publish()
        proof = _proof(self._secret, self._port) if self._secret and self._source != OPEN else ""
        return {SOURCE: self._source, SEALED: self._sealed, PROOF: proof}

    def remove(self) -> None:
        """Remove the file; idempotent, never raises."""
        if self._file is not None:
            self._file.remove()

    def _sealed_for(self, port: int) -> tuple[str, ...]:
        run = self._settings
        return ("elastic c10d", quote(run.run_id, safe=""), str(port), quote(run.job, safe=""), str(run.attempt))

    def _opened(self, missing: Sequence[str]) -> None:
        line = (
            f"any user who reaches this node can read and stop run {self._settings.run_id!r}: its store has no secret "
            f"({'; '.join(missing)}). Try: export {TOKEN_VARIABLE}=$(openssl rand -hex 32) before the job is "
            "submitted, or --rdzv-conf token_file=PATH"
        )
        self.notices = (line,)

    # --- the others

    def choose(self, public: Mapping[str, str], port: int) -> str:
        """Return the password for a store with these published fields; empty if this node has none for it.

        A password made from a secret is only for a store that proves to have the secret: another process on the port
        does not get it.
        """
        self._missing = []
        run_id = self._settings.run_id
        if self._token:
            return derive_password(run_id, self._token)
        for secret in (self._secret, self._of_file(port), self._unsealed(public.get(SEALED, ""), port)):
            if secret and hmac.compare_digest(public.get(PROOF, "").encode(), _proof(secret, port).encode()):
                self._secret = secret
                return derive_password(run_id, secret)
        is_open = public.get(SOURCE, OPEN if not self.made else "") == OPEN
        return derive_password(run_id, "") if is_open and not (self._strict and self._has_source()) else ""

    def _of_file(self, port: int) -> str:
        try:
            return SecretFile(self._folder, self._settings, port).read()
        except UnusableError as error:
            self._missing.append(str(error))
            return ""

    def _unsealed(self, credential: str, port: int) -> str:
        if not credential:
            return ""
        try:
            *meant, secret = munge.unsealed(credential).split("\n")
        except munge.MungeError as error:
            self._missing.append(str(error))
            return ""
        parts = slice(None if self._settings.attempt_given else 3)  # a command does not know job and attempt
        return secret if tuple(meant[parts]) == self._sealed_for(port)[parts] else ""

    def _has_source(self) -> bool:
        """Return whether this node could share a secret.

        If it could, a store without one is not of this run's first node.
        """
        try:
            file = SecretFile(self._folder, self._settings, 0)
            file.prepare("")
            file.remove()
        except UnusableError as error:
            self._missing.append(str(error))
        else:
            self._missing.append(f"folder {self._folder} for one")
            return True
        try:
            munge.sealed("")
        except munge.MungeError as error:
            self._missing.append(str(error))
            return False
        self._missing.append("munge for one")
        return True

    def difference(self, public: Mapping[str, str]) -> str:
        """Return why the store's password differs from this node's, with both sources; empty if it is not a run's."""
        theirs = "".join(each for each in public.get(SOURCE, "")[:_LONGEST] if each.isprintable())
        if not theirs or (theirs == self._source == OPEN and not self.made):  # of two runs
            return ""
        ours = "; ".join(dict.fromkeys(self._missing)) if self._missing else self._source
        return f"its password is made of {theirs}; on this node: {ours}"


def _proof(secret: str, port: int) -> str:
    """Return the code that proves that a store has a secret, and that can't be guessed."""
    return hmac.new(secret.encode(), b"elastic c10d store at port %d" % port, hashlib.sha256).hexdigest()


def derive_password(run_id: str, token: str) -> str:
    """Return a password of characters that need no quotes. Without a token, everyone who knows the id can derive it."""
    secret = hashlib.sha256()
    for part in (run_id, token):
        raw = os.fsencode(part)
        secret.update(b"%d:%s" % (len(raw), raw))
    return secret.hexdigest()


def _token(path: object, environ: Mapping[str, str]) -> str:
    if not path:
        return environ.get(TOKEN_VARIABLE, "")
    try:
        token = Path(str(path)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(
            f"--rdzv-conf token_file={str(path)!r} can't be read ({reason})", hint="another file"
        ) from error
    if not token:
        raise ConfigError(f"--rdzv-conf token_file={str(path)!r} is empty", hint="a file with the token in it")
    return token
