"""What `elastic run` loads before its workers run: each of these would cost milliseconds of every start."""

import subprocess
import sys

import import_times
from patience import patience

NOT_NEEDED = {
    "argparse",
    "asyncio",
    "click",
    "ctypes",
    "datetime",
    "hashlib",  # OpenSSL: half a MiB
    "importlib.metadata",
    "inspect",  # by way of pluggy or typing_extensions
    "ipaddress",  # by way of urllib.parse
    "json",
    "locale",  # by way of subprocess
    "logging",
    "msgspec._json_schema",
    "msgspec.inspect",
    "numpy",
    "platform",
    "pluggy",
    "queue",
    "random",
    "secrets",
    "shutil",
    "socket",
    "tempfile",
    "textwrap",
    "tokenize",  # by way of traceback
    "torch",
    "urllib.parse",
    "weakref",
}


def test_a_run_loads_nothing_that_it_does_not_need(tmp_path):
    worker = ("--no-python", "sh", "-c", "echo the worker runs >&2")
    command = import_times.command("elastic_core.run", "--run-dir", str(tmp_path), *worker)
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
    before, ran, _ = done.stderr.partition("the worker runs")
    assert ran
    loaded = import_times.imported(before)
    assert "elastic_core.launcher.job" in loaded
    assert loaded & NOT_NEEDED == set()


def test_what_is_loaded_for_failures_while_workers_run_is_small():
    large = ("datetime", "hashlib", "textwrap", "tokenize", "traceback")
    code = (
        "import sys; from elastic_core.cli.main import _import_with_less; _import_with_less()\n"
        "from elastic_core.failure.incidents import Incidents; Incidents.warm(None)\n"
        f"print('elastic_core.failure.incident' in sys.modules, *(name for name in {large} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stdout.split() == ["True"]


# `typing` compiles an annotation in quotes. The first call of `compile` makes the 118 classes of a syntax tree, which
# are a quarter of a MiB. Modules without a cached file are compiled as well, by their path.
WITHOUT_COMPILER = """
import builtins, os
genuine = builtins.compile
def recording(text, name, *values, **options):
    if name == "<string>":
        os.write(2, f"compiled: {text}\\n".encode())
    return genuine(text, name, *values, **options)
builtins.compile = recording
from elastic_core.cli.main import elastic_process
elastic_process(["run", "--no-python", "true"])
"""


def test_a_run_compiles_no_text(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=True,
        cwd=tmp_path,
    )
    assert "compiled: " not in done.stderr


# What the supervisor has loaded without some modules uses them all the same once a plugin asks for it.
LOADED_WITH_LESS = """
import sys
left_out = (
    "datetime", "locale", "msgspec._json_schema", "msgspec.inspect", "platform", "textwrap", "typing_extensions",
    "urllib.parse",
)
before = {name: name in sys.modules for name in left_out}
def use(argv):
    assert {name: name in sys.modules for name in left_out} == before
    import msgspec, pathlib, subprocess, uuid
    assert pathlib.Path("/a b").as_uri() == "file:///a%20b"
    assert pathlib.PureWindowsPath("c:/a").drive == "c:"
    class Dated(msgspec.Struct):
        "Told by its schema."
        at: "datetime.datetime"
        id: uuid.UUID
    shown = subprocess.run(["echo", "text"], stdout=subprocess.PIPE, text=True)
    assert shown.stdout == "text\\n"
    import datetime, locale, platform, textwrap, typing, typing_extensions, urllib.parse
    assert subprocess.locale.getencoding() == locale.getencoding()
    assert typing.ForwardRef("uuid.UUID")._evaluate(globals() | locals(), None, frozenset()) is uuid.UUID
    globals()["datetime"] = datetime
    dated = Dated(datetime.datetime(2026, 11, 27), uuid.UUID(int=7))
    assert msgspec.json.decode(msgspec.json.encode(dated), type=Dated) == dated
    assert msgspec.json.schema(Dated)["$defs"]["Dated"]["description"] == "Told by its schema."
    assert msgspec.inspect.type_info(datetime.datetime) == msgspec.inspect.DateTimeType()
    assert msgspec.toml and uuid.uuid4() and platform.machine() and textwrap.dedent(" a") == "a"
    assert all(sys.modules[name].__file__ for name in left_out), "each is itself"
    return 0
from elastic_core.cli import main as entry
entry.main = use
entry.elastic_process(["run"])
"""


def test_modules_that_a_start_leaves_out_can_be_imported_in_the_supervisor_all_the_same():
    done = subprocess.run(
        [sys.executable, "-c", LOADED_WITH_LESS], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_timings_say_where_the_time_went(tmp_path):
    command = [sys.executable, "-m", "elastic_core.run", "--timings", "--no-python", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True, cwd=tmp_path)
    told = [line.removeprefix("elastic: timings: ").partition(":")[0] for line in done.stderr.splitlines()]
    assert told == ["start", "round 0", "end", "all"]
    assert "spawn" in done.stderr
