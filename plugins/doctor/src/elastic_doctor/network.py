"""Checks of the network: the store, this node's address for other nodes, and chosen ports."""

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from elastic_backend_net.endpoint import parse_endpoint, resolve
from elastic_core.api import SYSTEM_CLOCK, ConfigError, ElasticError, WaitBudget, decode_json
from elastic_core.api.commands import StoreChoice, open_store
from elastic_core.api.stores import (
    CONTROL_KEY,
    BackendUnavailableError,
    Survey,
    WaitExpiredError,
    is_ip,
    is_loopback,
    route_source,
)
from elastic_doctor.findings import Asked, Finding, Level

_OUTSIDE: Final = "192.0.2.1"
"""An unassigned address: the kernel returns the route to it; nothing is sent."""
_CLIENT: Final = "::ffff:127.0.0.1"
"""A client of this host, as torch's store sees its address."""
_PORT: Final = 29400
_IN_USE: Final = "in use"
_LOOKUPS: Final = 100
_LONG_LOOKUP_S: Final = 0.2
_LOOKUPS_S: Final = 1.0
_STEPS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_WITHOUT_STORE: Final = ("local", "static")


class _Control(msgspec.Struct):
    """The run's control document: how the run ended. `None` means that it still runs."""

    verdict: object = None


def endpoint(asked: Asked) -> Iterator[Finding]:
    """Check whether the rendezvous store can be reached, accepts this client, and is free for the run."""
    choice = asked.store
    if choice is None:
        return
    if choice.backend in _WITHOUT_STORE:
        yield Finding(check="endpoint", level=Level.OK, what=f"backend {choice.backend!r} has no store to reach")
        return
    try:
        store = open_store(choice)
    except ElasticError as err:
        yield _failed("endpoint", err)
        return
    if asked.node_count > 1 and store.hosted_by_member:  # nodes that meet there see for themselves
        return
    wait = WaitBudget.lasting(choice.limit_s)
    try:
        store.connect(wait=wait)
        began_s = SYSTEM_CLOCK.monotonic_s()
        survey = store.survey((CONTROL_KEY,), wait=wait)
        latency_s = SYSTEM_CLOCK.monotonic_s() - began_s
    except (BackendUnavailableError, WaitExpiredError) as err:
        found = _unreached(err, choice, store.where)
        if store.hosted_by_member and _IN_USE not in found.what:
            what = f"{found.what}: as long as no node of the run has begun, that is right"
            yield Finding(check="endpoint", level=Level.OK, what=what)
        else:
            yield found
        return
    except ElasticError as err:
        yield _failed("endpoint", err)
        return
    finally:
        store.close()
    took = next((f"{most} ms" for most in _STEPS_MS if latency_s * 1000 <= most), f"{latency_s:.0f} s")
    what = f"{store.where} answers within {took}; run {choice.run_id!r} {_state(survey)}"
    yield Finding(check="endpoint", level=Level.OK, what=what)


def _state(survey: Survey) -> str:
    raw = survey.documents.get(CONTROL_KEY)
    if raw is not None and decode_json(raw, _Control).verdict is not None:
        return "has ended"
    live = sum(1 for member in survey.members if member.incarnation not in survey.silent)
    return f"has {live} live node{'' if live == 1 else 's'}" if live else "is not there"


def _unreached(err: BackendUnavailableError | WaitExpiredError, choice: StoreChoice, where: str) -> Finding:
    if isinstance(err, WaitExpiredError):
        what, remedy = f"no answer within {choice.limit_s:g} s", "a longer --connect-timeout"
    else:
        what, remedy = err.what, err.hint or "check that the server runs, and the --rdzv-endpoint"
    told = what if where in what else f"{where}: {what}"
    return Finding(check="endpoint", level=Level.FAIL, what=told, remedy=remedy)


def _failed(check: str, err: ElasticError) -> Finding:
    return Finding(check=check, level=Level.FAIL, what=err.what, remedy=err.hint)


def address(asked: Asked) -> Iterator[Finding]:
    """Return the address at which other nodes would reach this one."""
    out = route_source(_OUTSIDE)
    if asked.store is None:
        yield Finding(check="address", level=Level.OK, what=out or "no way out of this host, and none is needed")
        return
    there = _endpoint_addresses(asked)
    own = next((source for source in map(route_source, there) if source), "")
    if there and all(map(is_loopback, there)):
        what = f"the endpoint {asked.store.endpoint!r} is this host itself: on others it would be those"
        remedy = f"an --rdzv-endpoint that all nodes can use: {socket.gethostname()} or {out or 'an address'}"
        yield Finding(check="address", level=Level.WARN, what=what, remedy=remedy)
    elif own or out:
        yield Finding(
            check="address", level=Level.OK, what=f"{own or out}, by the way to {'the endpoint' if own else 'others'}"
        )
    else:
        remedy = "a network, or --local-addr with the address at which other nodes reach this one"
        yield Finding(check="address", level=Level.WARN, what="no way to other hosts", remedy=remedy)


def _endpoint_addresses(asked: Asked) -> list[str]:
    assert asked.store is not None
    text = asked.store.endpoint.rpartition("://")[2].rpartition("@")[2].partition("/")[0].partition(",")[0]
    try:
        found = parse_endpoint(text, default_port=_PORT)
        if is_ip(found.host):
            return [found.host]
        return [each.ip for each in resolve(found.host, found.port, wait=WaitBudget.lasting(asked.store.limit_s))]
    except (ElasticError, OSError):
        return []  # a unix socket, or what the check of the endpoint says


def host_name(asked: Asked) -> Iterator[Finding]:
    """Check whether the host's own name resolves to it, for programs that publish that name."""
    if not asked.many_nodes:
        return
    name = socket.gethostname()
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})
    except OSError as err:
        what = f"{name!r} does not resolve here ({err.strerror})"
        remedy = "an entry in /etc/hosts or DNS; elastic run itself uses addresses"
        yield Finding(check="host name", level=Level.WARN, what=what, remedy=remedy)
        return
    if all(map(is_loopback, found)):
        what = f"{name!r} is {', '.join(found)} here: other nodes that use this name do not reach this node"
        remedy = "the host's real address in /etc/hosts; elastic run itself uses addresses"
        yield Finding(check="host name", level=Level.WARN, what=what, remedy=remedy)
    else:
        yield Finding(check="host name", level=Level.OK, what=f"{name!r} is {', '.join(found)}")


def client_names(asked: Asked) -> Iterator[Finding]:
    """Warn if the look-up of a client's name can take long: the server of torch's store makes one for each client."""
    began_s = last_s = SYSTEM_CLOCK.monotonic_s()
    for _ in range(_LOOKUPS):
        with suppress(OSError):  # no such address here, or no answer after the resolver's own limits
            socket.getnameinfo((_CLIENT, 1, 0, 0), socket.NI_NUMERICSERV)
        before_s, last_s = last_s, SYSTEM_CLOCK.monotonic_s()
        if last_s - before_s > _LONG_LOOKUP_S:
            what = (
                f"the name server took {last_s - before_s:.1f} s for {_CLIENT}: at times workers wait as long to start"
            )
            remedy = (
                f"a line '{_CLIENT} localhost' in /etc/hosts, and a name server that answers for the nodes' addresses"
            )
            yield Finding(check="client names", level=Level.WARN, what=what, remedy=remedy)
            return
        if last_s - began_s > _LOOKUPS_S:
            return


def ports(asked: Asked) -> Iterator[Finding]:
    """Check whether chosen ports are free on this host."""
    kinds = (
        ("--agent-port", asked.agent_port, socket.SOCK_DGRAM),
        ("--master-port", asked.master_port, socket.SOCK_STREAM),
    )
    for option, port, kind in kinds:
        if not port:
            continue
        problem = _bound(port, kind)
        if problem is None:
            yield Finding(check="ports", level=Level.OK, what=f"{option} {port} is free")
            continue
        protocol = "u" if kind == socket.SOCK_DGRAM else "t"
        remedy = f"end what uses it (ss -ln{protocol}p 'sport = :{port}'), or another port"
        if problem.errno != errno.EADDRINUSE:
            remedy = "a port from 1024 to 65535"
        what = f"{option} {port} can't be had ({problem.strerror})"
        yield Finding(check="ports", level=Level.FAIL, what=what, remedy=remedy)


def _bound(port: int, kind: int) -> OSError | None:
    try:
        with socket.socket(socket.AF_INET, kind) as sock:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as rank 0's store does
            sock.bind(("", port))
    except OSError as err:
        return err
    except OverflowError as err:
        raise ConfigError(f"--port: {port}; expected a port", hint="1024 to 65535") from err
    return None
