"""What torch's rendezvous has beside its handlers: parameters, registries, endpoints, and the helpers' own rules."""

import datetime
import importlib
import os
import pickle
import random
import socket
import subprocess
import sys

import msgspec
import pytest

from elastic_core import errors, types
from elastic_core.compat.elastic import utils
from elastic_core.compat.elastic.rendezvous import (
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from elastic_core.compat.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler
from elastic_core.compat.elastic.rendezvous.utils import parse_rendezvous_endpoint
from elastic_core.compat.elastic.utils import logging, process_state
from elastic_core.compat.elastic.utils.store import store_timeout
from elastic_core.errors import BackendRefusedError, BackendUnavailableError, OutcomeUnknownError
from elastic_core.rendezvous import registry as in_code
from elastic_core.rendezvous.coordinated import CoordinatedRendezvous
from elastic_core.system.clock import WaitBudget
from elastic_plugin_kit import rendezvous_settings
from elastic_torchrun import torch_errors
from elastic_torchrun.names import NAMES
from elastic_torchrun.rendezvous import c10d_backend, state_store, tcp_store
from elastic_torchrun.rendezvous.dynamic import DynamicRendezvousHandler, create_handler
from elastic_torchrun.rendezvous.state_backend import RendezvousBackend
from elastic_torchrun.rendezvous.state_store import StateStore
from elastic_torchrun.rendezvous.store_helpers import barrier
from elastic_torchrun.store import process


def parameters(**config):
    return RendezvousParameters("mine", "host:1", "run", 1, 2, **config)


# --- parameters


@pytest.mark.parametrize(
    ("backend", "least", "most", "told"), [("", 1, 1, "name"), ("x", 0, 1, "min_nodes=0"), ("x", 2, 1, "max_nodes=1")]
)
def test_parameters_that_cannot_be(backend, least, most, told):
    with pytest.raises(ValueError, match=told):
        RendezvousParameters(backend, "", "run", least, most)


def test_options_as_they_are_as_truths_and_as_numbers():
    made = parameters(a="Yes", b="0", c=1, d=False, e=" 7 ", f=None, g="x")
    assert (made.local_addr, made.config["a"], made.get("z", 3)) == (None, "Yes", 3)
    assert [made.get_as_bool(key) for key in "abcdfz"] == [True, False, True, False, None, None]
    assert (made.get_as_bool("z", True), made.get_as_int("e"), made.get_as_int("z", 4)) == (True, 7, 4)
    for ask in (made.get_as_bool, made.get_as_int):
        with pytest.raises(ValueError, match="g: 'x'; expected"):
            ask("g")
    with pytest.raises(ValueError, match="n: 2; expected"):
        parameters(n=2).get_as_bool("n")


# --- endpoints


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        (None, ("localhost", 9)),
        ("  ", ("localhost", 9)),
        ("h", ("h", 9)),
        ("h.example:0", ("h.example", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]", ("::1", 9)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_endpoints(endpoint, found):
    assert parse_rendezvous_endpoint(endpoint, 9) == found


@pytest.mark.parametrize("endpoint", ["h:65536", "h:", "h:x", "h:-1", "a b:1", "~:1", ":1", "h:123456"])
def test_endpoints_that_cannot_be(endpoint):
    with pytest.raises(ValueError, match="endpoint"):
        parse_rendezvous_endpoint(endpoint, 9)


# --- registries


class Handler:
    def __init__(self, name="mine"):
        self._name = name

    def get_backend(self):
        return self._name


def test_a_registry_makes_what_was_registered():
    registry = RendezvousHandlerRegistry()
    made = Handler()

    def create(params):
        return made

    registry.register("mine", create)
    registry.register("mine", create)
    assert registry.create_handler(parameters()) is made
    with pytest.raises(ValueError, match="already"):
        registry.register("mine", lambda params: made)
    with pytest.raises(ValueError, match="empty"):
        registry.register("", create)


def test_a_registry_refuses_names_that_nobody_has():
    registry = RendezvousHandlerRegistry()
    registry.register("other", lambda params: Handler("another"))
    with pytest.raises(ValueError, match=r"'mine' is not registered; there are: other"):
        registry.create_handler(parameters())
    with pytest.raises(RuntimeError, match="calls itself 'another'"):
        registry.create_handler(RendezvousParameters("other", "", "run", 1, 1))


class Shelf(RendezvousBackend):
    """Keeps one state."""

    name = "mine"

    def __init__(self):
        self.state, self.count = None, 0

    def get_state(self):
        return None if self.state is None else (self.state, self.count)

    def set_state(self, state, token=None):
        if token != (self.count or None):
            return self.state, self.count, False
        self.state, self.count = state, self.count + 1
        return state, self.count, True


@pytest.fixture
def registered():
    def create(params):
        return create_handler(None, Shelf(), params)

    rendezvous_handler_registry.register("mine", create)
    yield
    in_code.unregister("mine")
    del rendezvous_handler_registry._creators["mine"]


def test_what_is_registered_for_scripts_serves_agents_with_all_that_they_know(registered):
    maker = in_code.registered("mine")
    handler = maker(rendezvous_settings(backend="mine", run_id="r", local_world_size=4, options={"join_timeout": "7"}))
    assert isinstance(handler, CoordinatedRendezvous)
    assert (handler.settings.local_world_size, handler.settings.options["join_timeout"]) == (4, 7.0)
    assert get_rendezvous_handler(parameters()).get_backend() == "mine"


def test_a_name_that_is_neither_registered_nor_installed():
    with pytest.raises(ValueError, match="'nonesuch'"):
        get_rendezvous_handler(RendezvousParameters("nonesuch", "", "run", 1, 1))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        ({"join_timeout": "9", "last_call_timeout": 2}, {"join_timeout": 9.0, "last_call_timeout": 2.0}),
        ({"keep_alive_interval": 2}, {"lease_ttl": 6.0}),
        ({"keep_alive_max_attempt": 2, "timeout": 900}, {"lease_ttl": 10.0}),
        ({"cas_backoff_max_seconds": "0"}, {"cas_backoff_max_seconds": 0.0}),
        ({"cas_backoff_max_seconds": 1.5}, {"cas_backoff_max_seconds": 1.5}),
    ],
)
def test_torchs_options_of_a_dynamic_handler(config, options):
    assert create_handler(None, Shelf(), parameters(**config)).settings.options == options


@pytest.mark.parametrize("value", [0, -1, "soon"])
def test_times_that_cannot_be(value):
    with pytest.raises(ValueError, match="join_timeout"):
        create_handler(None, Shelf(), parameters(join_timeout=value))


@pytest.mark.parametrize("value", [-1, "inf", "nan", "soon", None])
def test_backoffs_that_cannot_be(value):
    with pytest.raises(ValueError, match="cas_backoff_max_seconds"):
        DynamicRendezvousHandler.from_backend("run", None, Shelf(), 1, 2, cas_backoff_max_seconds=value)
    if value is not None:
        with pytest.raises(ValueError, match="cas_backoff_max_seconds"):
            create_handler(None, Shelf(), parameters(cas_backoff_max_seconds=value))


def test_a_backoff_is_the_longest_pause_after_a_write_that_was_spoiled(monkeypatch):
    class Contended(Shelf):
        spoiled = 0

        def set_state(self, state, token=None):
            if self.spoiled < 2:
                self.spoiled += 1
                return (*(self.get_state() or (b"", None)), False)
            return super().set_state(state, token)

    def pauses(**config):
        longest = []
        monkeypatch.setattr(random, "uniform", lambda low, high: longest.append((low, high)) or 0.0)
        handler = create_handler(None, Contended(), parameters(**config))
        handler.store.enlist(b"me", incarnation="i", ttl_s=5.0, wait=WaitBudget())
        return longest

    assert pauses(cas_backoff_max_seconds=3) == [(0, 3.0)] * 2
    assert pauses() == [(0, 0.02), (0, 0.04)]  # ours


def test_settings_have_torchs_names_and_the_cores():
    timeout = RendezvousTimeout(join=datetime.timedelta(seconds=9), last_call=datetime.timedelta(seconds=4))
    made = DynamicRendezvousHandler.from_backend("run", None, Shelf(), 1, 2, None, timeout, 2, 5, 0.25)
    made.settings = msgspec.structs.replace(made.settings, node_id="n0")  # as agents do
    settings = made.settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes, settings.node_id) == ("run", 1, 2, "n0")
    assert (settings.keep_alive_interval.total_seconds(), settings.keep_alive_max_attempt) == (2, 5)
    assert (settings.timeout.join.total_seconds(), settings.timeout.last_call.total_seconds()) == (9, 4)
    assert settings.cas_backoff_max_seconds == 0.25
    assert made.use_agent_store is False
    made.adopt(types.RendezvousSettings(run_id="other", role="trainer"))
    assert (made.settings.role, made.settings.keep_alive_max_attempt) == ("trainer", 5)


def test_settings_of_what_was_not_asked_for():
    settings = create_handler(None, Shelf(), parameters(keep_alive_max_attempt="4")).settings
    assert (settings.timeout.join.total_seconds(), settings.timeout.last_call.total_seconds()) == (600, 30)
    assert (settings.keep_alive_interval.total_seconds(), settings.keep_alive_max_attempt) == (5, 4)
    core = rendezvous_settings(run_id="run")
    plain = DynamicRendezvousHandler(StateStore(core, backend=Shelf()), core).settings
    assert plain.keep_alive_interval.total_seconds() * plain.keep_alive_max_attempt == pytest.approx(5)


def test_a_number_is_a_run_id():
    numbered = RendezvousParameters("mine", "", 7, 1, 2)
    assert create_handler(None, Shelf(), numbered).settings.run_id == "7"
    assert DynamicRendezvousHandler.from_backend(0, None, Shelf(), 1, 2).settings.run_id == "0"
    with pytest.raises(ValueError, match="run id is empty"):
        create_handler(None, Shelf(), RendezvousParameters("mine", "", None, 1, 2))


def test_timeouts_have_torchs_defaults():
    default = RendezvousTimeout()
    seconds = [each.total_seconds() for each in (default.join, default.last_call, default.close, default.heartbeat)]
    assert seconds == [600, 30, 30, 5]
    with pytest.raises(ValueError, match="last_call"):
        RendezvousTimeout(last_call=datetime.timedelta(0))


# --- what a round is


def test_a_round_in_torchs_order_of_arguments():
    info = RendezvousInfo("store", 1, 2, RendezvousStoreInfo("host", 3))
    assert isinstance(info, types.RendezvousInfo)
    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info.master_port) == ("store", 1, 2, 3)
    assert (info.master_addr, info.master_port) == ("host", 3)  # what an agent of ours reads


class Keys(dict):
    """A store, as far as helpers need one."""

    timeout = datetime.timedelta(seconds=300)

    def set(self, key, value):
        self[key] = value

    def get(self, key):
        return self[key]

    def set_timeout(self, timeout):
        self.timeout = timeout


def test_nodes_agree_on_where_workers_meet():
    store = Keys()
    first = RendezvousStoreInfo.build(0, store, "me", 7)
    assert first == RendezvousStoreInfo.build(1, store, "you") == RendezvousStoreInfo("me", 7)
    assert store == {"MASTER_ADDR": b"me", "MASTER_PORT": b"7"}
    assert RendezvousStoreInfo.build(0, store, "me").master_port > 0


def test_a_timeout_comes_back_after_an_exception():
    store = Keys()
    seen = []

    def fail():
        with store_timeout(store, 5):
            seen.append(store.timeout.total_seconds())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*seen, store.timeout.total_seconds()] == [5, 300]


def test_a_barrier_with_names_needs_a_rank():
    with pytest.raises(ValueError, match="rank"):
        barrier(Keys(), 2, "b", rank_tracing_decoder=str)


# --- ports


def test_a_free_port_is_free():
    with socket.socket() as sock:
        sock.bind(("localhost", tcp_store.get_free_port()))
    with tcp_store.get_socket_with_port() as kept, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):  # on any address
            other.bind(("127.0.0.1", kept.getsockname()[1]))
        assert not kept.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    with tcp_store.find_free_port() as listening:
        socket.create_connection(("localhost", listening.getsockname()[1])).close()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((24, "too many open files"), "[Errno 24] too many open files"),
        (("too many open files",), "too many open files"),
    ],
)
def test_where_no_socket_can_be_had_the_reason_is_told(monkeypatch, args, text):
    def refuse(*_):
        raise OSError(*args)

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError, match="too many open files") as caught:
        tcp_store.get_free_port()
    assert str(caught.value) == text
    assert isinstance(caught.value, RuntimeError)  # as torch raises
    with pytest.raises(RuntimeError, match="too many open files"):
        tcp_store.find_free_port()


@pytest.mark.parametrize(("is_server", "world_size"), [(True, 2), (False, 1)])
def test_a_store_that_others_could_not_find(is_server, world_size):
    with pytest.raises(ValueError, match="port"):
        tcp_store.create_c10d_store(is_server, "localhost", world_size=world_size)


@pytest.mark.parametrize("make", [torch_errors.one_line, c10d_backend._one_line, process.one_line])
def test_a_reason_of_torchs_has_no_full_stop(make):
    error = RuntimeError("The client socket has failed to connect to (localhost, 1).\nException raised from x")
    assert make(error).endswith("(localhost, 1)")


# --- the adapter's errors


class Failing(Shelf):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def set_state(self, state, token=None):
        raise self.error


def torchs(name):
    """Return an error of a class of that name, as torch's are named."""
    base = type("RendezvousError", (Exception,), {})
    return type(name, (base,), {})("no luck\nwith a second line")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torchs("RendezvousConnectionError"), OutcomeUnknownError),
        (errors.RendezvousConnectionError("no luck"), OutcomeUnknownError),
        (RuntimeError("no luck"), OutcomeUnknownError),
        (torchs("RendezvousStateError"), BackendRefusedError),
        (errors.RendezvousStateError("no luck"), BackendRefusedError),
        (TypeError("no luck"), BackendRefusedError),
    ],
)
def test_what_a_backend_raises_when_it_writes(error, kind):
    store = StateStore(rendezvous_settings(run_id="r", endpoint="user:secret@host:1"), backend=Failing(error))
    with pytest.raises(kind, match=r"^mine at host:1: \w+: no luck($|\. Try)"):
        store.enlist(b"", incarnation="a", ttl_s=5, wait=WaitBudget.lasting(5))


def test_a_state_of_somebody_else_is_refused():
    shelf = Shelf()
    shelf.set_state(pickle.dumps({"round": 0}))
    with pytest.raises(BackendRefusedError, match="is not what this version writes"):
        StateStore(rendezvous_settings(run_id="r"), backend=shelf).connect(wait=WaitBudget.lasting(5))


def test_others_who_always_are_faster(monkeypatch):
    monkeypatch.setattr(state_store, "_TRIES", 5)

    class Crowded(Shelf):
        def set_state(self, state, token=None):
            return None

    with pytest.raises(BackendUnavailableError, match="others change the run"):
        StateStore(rendezvous_settings(run_id="r"), backend=Crowded()).enlist(
            b"", incarnation="a", ttl_s=5, wait=WaitBudget.lasting(60)
        )


# --- errors and small helpers


@pytest.mark.parametrize("kind", [errors.RendezvousError, errors.RendezvousClosedError, errors.RendezvousTimeoutError])
def test_errors_may_be_raised_without_a_word_as_torchs_are(kind):
    error = pickle.loads(pickle.dumps(kind()))
    assert (str(error), type(error), error.exit_code) == (f"{kind.__name__} was raised", kind, 4)


def test_macros_stand_for_a_workers_own_values():
    assert utils.macros.substitute(["--rank=${local_rank}", 7, "$x"], "3") == ["--rank=3", 7, "$x"]


def test_a_variable_that_must_be_there(monkeypatch):
    monkeypatch.setenv("THERE", "")
    assert utils.get_env_variable_or_raise("THERE") == ""
    with pytest.raises(ValueError, match="NOT_THERE"):
        utils.get_env_variable_or_raise("NOT_THERE")


def test_a_logger_has_the_level_of_its_variable(monkeypatch):
    monkeypatch.setenv("LOGLEVEL", "debug")
    assert (logging.get_logger().name, logging.get_logger("x").level) == (__name__, 10)
    monkeypatch.delenv("LOGLEVEL")
    assert logging.get_logger("x").level == 30


def test_the_state_of_a_process():
    assert process_state.read_proc_state(os.getpid()) == "R"
    assert process_state.read_proc_state(2**22 + 1) is None
    assert [process_state.is_uninterruptible_state(state) for state in ("D", "R", None)] == [True, False, False]


# --- names


ROOM = [
    name
    for name in NAMES
    if name.startswith(("elastic.rendezvous", "elastic.utils.store", "elastic.utils.distributed"))
]


def test_every_name_is_there():
    for name in ROOM:
        found = importlib.import_module(f"elastic_core.compat.{name}")
        for each in found.__all__:
            if each != "EtcdStore":  # imports torch
                assert getattr(found, each) is not None
        with pytest.raises(AttributeError):
            _ = found.nonesuch


def test_torchs_module_paths():
    base = "elastic_core.compat.elastic.rendezvous"
    for module in ("", ".api", ".registry", ".dynamic_rendezvous", ".c10d_rendezvous_backend", ".etcd_rendezvous",
                   ".etcd_rendezvous_backend", ".etcd_server", ".static_tcp_rendezvous", ".utils"):  # fmt: skip
        found = importlib.import_module(base + module)
        assert all(hasattr(found, name) for name in found.__all__)
    assert importlib.import_module("elastic_core.compat.elastic.utils.store").barrier is barrier


def test_nothing_of_it_imports_torch():
    code = (
        "import importlib, sys, elastic_core.compat.elastic.utils.data as data\n"
        f"rooms = [importlib.import_module('elastic_core.compat.' + name) for name in {ROOM}]\n"
        "[getattr(r, name) for r in rooms for name in r.__all__ if name != 'EtcdStore']\n"
        "data.CyclingIterator\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
