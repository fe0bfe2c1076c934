"""Real interpreters with the environment that the agent gives its workers."""

import signal
import stat
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from elastic_core.failure.classify import judge
from elastic_core.types import FailureClass, Origin, WorkerExit
from worker_kit import UNDECORATED, Worker


def test_an_undecorated_exception_is_recorded_and_printed_once(run, tmp_path):
    worker = run(UNDECORATED)
    record = worker.record()
    assert worker.exit.code == 1
    assert worker.stderr.count("ValueError: boom") == 1
    assert record is not None
    assert (record.source, record.type, record.message) == ("hook", "ValueError", "boom")
    script = str(tmp_path / "train.py")
    assert record.frames == (
        (script, 7, "<module>", "main()"),
        (script, 5, "main", "step()"),
        (script, 2, "step", 'raise ValueError("boom")'),
    )
    assert record.callstack in worker.stderr
    assert worker.exit.at_ns - worker.exit.runtime_s * 1e9 < record.timestamp_ns < worker.exit.at_ns
    assert not record.top_level_import


def test_what_the_hook_writes_is_the_owners_alone_and_nothing_else_is_left(run, tmp_path):
    worker = run("import os; os.umask(0)\nraise ValueError")
    assert {entry.name for entry in tmp_path.iterdir()} == {"train.py", "error.json", "fault.txt"}
    assert stat.S_IMODE(worker.error_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(worker.fault_file.stat().st_mode) == 0o600


def test_a_syntax_error_in_the_script_is_a_usage_error_at_its_line(run, tmp_path):
    worker = run("x = 1\ndef (:\n")
    record = worker.record()
    assert record is not None
    assert record.type == "SyntaxError"
    assert record.frames == ((str(tmp_path / "train.py"), 2, "<module>", "def (:"),)
    assert worker.judged().failure_class is FailureClass.USAGE


def test_an_import_that_fails_at_the_top_level_is_a_usage_error_also_one_module_down(run, tmp_path):
    (tmp_path / "helper.py").write_text("import json\nfrom json import nosuch\n")
    for source in ("import nosuch", "import helper"):
        worker = run(source)
        assert worker.judged().failure_class is FailureClass.USAGE
        record = worker.record()
        assert record is not None
        assert record.frames[-1][2] == "<module>"


def test_an_import_that_fails_inside_a_function_is_not(run):
    worker = run("def main():\n    import nosuch\nmain()")
    assert worker.judged().failure_class is FailureClass.USER_EXCEPTION


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["nosuch.py"], "FileNotFoundError", 2),
        (["-m", "nosuch"], "ModuleNotFoundError", 1),
        (["-um", "nosuch.inner", "--flag"], "ModuleNotFoundError", 1),
        (["-mnosuch"], "ModuleNotFoundError", 1),
        (["empty"], "FileNotFoundError", 1),
    ],
)
def test_a_program_that_is_not_there_is_a_usage_error(tmp_path, arguments, kind, code):
    (tmp_path / "empty").mkdir()
    worker = Worker(tmp_path, arguments, {})
    assert worker.exit.code == code
    judged = worker.judged()
    assert (judged.origin, judged.failure_class) == (Origin.INTRINSIC, FailureClass.USAGE)
    assert judged.summary.startswith(f"{kind}: ")
    assert arguments[-1].removeprefix("-m").split(".")[0] in judged.summary or "nosuch.inner" in judged.summary


def test_a_module_that_fails_by_itself_is_not_a_missing_one(tmp_path):
    (tmp_path / "mod.py").write_text("def main():\n    raise ValueError('boom')\nmain()\n")
    worker = Worker(tmp_path, ["-m", "mod"], {})
    record = worker.record()
    assert record is not None
    assert (record.type, record.top_level_import) == ("ValueError", False)
    assert [frame[2] for frame in record.frames] == ["<module>", "main"]


@pytest.mark.parametrize("arguments", [["train.py"], ["-m", "train"], ["folder"], ["-m", "folder"], ["train.zip"]])
def test_a_program_that_ran_and_left_with_the_interpreters_own_codes_is_not_a_missing_one(tmp_path, arguments):
    source = "import sys\nsys.exit(1)\n"
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(source)
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("__main__.py", source)
    worker = Worker(tmp_path, arguments, {})
    assert worker.exit.code == 1
    assert not worker.error_file.exists()


def test_arming_twice_changes_nothing_more(run):
    worker = run(
        "import os\nfrom elastic_core.worker.startup import arm_worker\nimport sys\n"
        "before = sys.excepthook\narm_worker()\n"
        "assert sys.excepthook == before\nraise ValueError('boom')"
    )
    record = worker.record()
    assert record is not None
    assert (record.type, worker.stderr.count("boom")) == ("ValueError", 2)  # its source line, and its text


@pytest.mark.parametrize("arguments", [["-c", "raise SystemExit(3)"], ["-"]])
def test_programs_without_a_file_leave_no_record(tmp_path, arguments):
    assert Worker(tmp_path, arguments, {}).record() is None


def test_a_script_that_replaces_the_excepthook_is_recorded_too(run):
    worker = run("import sys\nsys.excepthook = lambda *parts: print('mine')\nraise ValueError('boom')")
    record = worker.record()
    assert worker.stdout == "mine\n"
    assert "boom" not in worker.stderr
    assert record is not None
    assert (record.type, record.message) == ("ValueError", "boom")


def test_a_script_that_chains_the_excepthook_prints_once(run):
    worker = run(
        """\
        import sys
        before = sys.excepthook
        def hook(*parts):
            print("mine", file=sys.stderr)
            before(*parts)
        sys.excepthook = hook
        raise ValueError("boom")
        """
    )
    assert worker.stderr.startswith("mine\nTraceback")
    assert worker.stderr.count("ValueError: boom") == 1
    assert worker.record() is not None


def test_a_keyboard_interrupt_is_recorded_as_such(run):
    worker = run("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass")
    record = worker.record()
    assert worker.exit.code == -signal.SIGINT
    assert record is not None
    assert record.type == "KeyboardInterrupt"
    assert worker.judged().failure_class is FailureClass.SIGNAL


def test_an_interrupt_while_an_exception_is_written_costs_neither_the_record_nor_a_word(run):
    worker = run(
        """\
        import os, signal, sys
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name.endswith("writer"):
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        raise ValueError("boom")
        """
    )
    record = worker.record()
    assert record is not None
    assert (record.type, record.message) == ("ValueError", "boom")
    assert worker.stderr.count("Traceback") == 1
    assert "excepthook" not in worker.stderr
    assert worker.exit.code == 1


INTERRUPTS = """
import os, pathlib, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("writer"):
            seen = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"] + ".begun").exists()
            print("begun" if seen else "not begun", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("failure", ["raise ValueError('boom')", "sys.exit('no lr')"])
def test_a_stop_of_the_worker_waits_until_its_failure_is_recorded(run, failure):
    worker = run(INTERRUPTS + failure)
    assert worker.stdout == "begun\n"
    assert worker.exit.code == -signal.SIGTERM
    assert worker.error_file.exists()


def test_a_script_that_goes_on_after_an_exit_leaves_no_sign_of_one(run):
    worker = run("import sys\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    print('goes on')")
    assert (worker.exit.code, worker.stdout) == (0, "goes on\n")
    assert not list(worker.error_file.parent.glob("error*"))


def test_a_scripts_own_handler_gets_the_stop_signal_after_the_record(run):
    handler = (
        "def handle(*_):\n"
        "    print('handled', pathlib.Path(os.environ['TORCHELASTIC_ERROR_FILE']).exists(), flush=True)\n"
        "signal.signal(signal.SIGTERM, handle)\n"
    )
    worker = run(INTERRUPTS + handler + "raise ValueError('boom')")
    assert worker.stdout == "begun\nhandled True\n"
    assert worker.exit.code == 1


@pytest.mark.parametrize("call", ["hook()", "thread = threading.Thread(target=hook); thread.start(); thread.join()"])
def test_what_an_interrupt_does_is_the_scripts_again_once_an_exception_is_written(run, call):
    worker = run(
        f"""\
        import os, signal, sys, threading
        def hook():
            sys.excepthook(ValueError, ValueError("boom"), None)
        {call}
        os.kill(os.getpid(), signal.SIGINT)
        while True: pass
        """
    )
    assert worker.exit.code == -signal.SIGINT
    assert worker.error_file.exists()


@pytest.mark.parametrize("leaving", ["sys.exit(3)", "sys.exit(True)", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_leaving_without_an_exception_leaves_no_record(run, leaving):
    worker = run(f"import os, sys\n{leaving}")
    assert worker.exit.code != 0
    assert not worker.error_file.exists()
    assert worker.record() is None


ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\np.parse_args()"
CLICK = """
    import click
    @click.command()
    @click.option("--lr", required=True)
    def main(lr): pass
    main()
    """
BROKEN = "class Bad:\n    def __str__(self): raise OSError\n"
LEAVES = {
    "message": ("import sys\nsys.exit('no lr')", 1, "exit code 1: no lr", "train.py", 2),
    "raised": ("raise SystemExit('no lr')", 1, "exit code 1: no lr", "", 0),
    "exit": ("exit('no lr')", 1, "exit code 1: no lr", "", 0),
    "float": ("import sys\nsys.exit(3.5)", 1, "exit code 1: 3.5", "train.py", 2),
    "tuple": ("import sys\nsys.exit(('a', 1))", 1, "exit code 1: ('a', 1)", "train.py", 2),
    "argparse": (ARGPARSE, 2, "exit code 2: train.py: error: the following arguments are required: --lr", "", 0),
    "click": (CLICK, 2, "exit code 2: Missing option '--lr'.", "", 0),
    "handler": ("import sys\ntry: {}['lr']\nexcept KeyError: sys.exit(3)", 3,
                "exit code 3, while handling KeyError: 'lr'", "train.py", 3),
    "lines": ("import sys\nsys.exit('first\\nlast\\n')", 1, "exit code 1: first", "train.py", 2),
    "after callbacks": ("import atexit, sys\natexit.register(lambda: 1/0)\nsys.exit('no lr')", 1,
                        "exit code 1: no lr", "train.py", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_an_exit_with_a_reason_is_recorded_with_it(run, name):
    source, code, summary, file, line = LEAVES[name]
    worker = run(source)
    assert worker.exit.code == code
    judged = worker.judged()
    assert judged.summary == summary
    assert judged.failure_class is (FailureClass.USAGE if name in ("argparse", "click") else FailureClass.EXIT)
    assert judged.error.source == "hook"
    if file:
        assert (Path(judged.error.frames[-1][0]).name, judged.error.frames[-1][1]) == (file, line)


@pytest.mark.parametrize(
    "source",
    [
        "import sys\ntry: sys.exit('caught')\nexcept SystemExit: pass\nsys.exit(1)",
        "import sys\ntry: sys.exit('caught')\nexcept SystemExit: pass\nraise SystemExit(1)",
        "import sys\nprint('a warning', file=sys.stderr)\nsys.exit(1)",
        "import sys, threading\nt = threading.Thread(target=sys.exit, args=('no failure',))\nt.start()\nt.join()",
        "import sys, threading\nt = threading.Thread(target=sys.exit, args=('no failure',))\nt.start()\nsys.exit(4)",
        "import sys\nsys.exit(0)",
        "import sys\nsys.exit(None)",
        "import sys\ntry: 1/0\nexcept ZeroDivisionError: sys.exit(0)",
        "import atexit, sys\natexit.register(lambda: 1/0)\nsys.exit(1)",
        f"{BROKEN}import sys\nsys.exit(Bad())",
        "import os, sys\nif os.fork() == 0: sys.exit('the child')\nos.wait()\nsys.exit(5)",
    ],
)
def test_an_exit_without_a_reason_of_its_own_leaves_none(run, source):
    worker = run(source)
    assert worker.record() is None


def test_the_message_of_an_exit_is_printed_as_it_was_and_bounded_in_the_record(run):
    worker = run("import sys\nsys.exit('\\x1b[31m' + 'x' * 10**8)")
    assert len(worker.stderr) == 10**8 + 6
    assert worker.error_file.stat().st_size < 1 << 17
    assert worker.judged().summary.startswith("exit code 1: \x1b[31mxxx")


def test_what_a_script_does_with_exit_and_stderr_is_as_without_us(run):
    source = """
        import io, pickle, sys
        sys.stderr.write("a")
        print("b", file=sys.stderr)
        assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
        assert sys.exit.__name__ == "exit" and "SystemExit" in sys.exit.__doc__
        for wrong in (lambda: sys.exit(1, 2), lambda: sys.exit(status=1), lambda: sys.stderr.write(b"x")):
            try: wrong()
            except TypeError: continue
            raise AssertionError
        try: sys.exit((1, 2))
        except SystemExit as error: assert error.code == (1, 2)
        sys.stderr = io.StringIO()
        sys.exit("lost")
        """
    worker = run(source)
    assert (worker.exit.code, worker.stderr) == (1, "ab\n")


def test_a_script_that_is_stopped_while_it_leaves_was_stopped(run):
    worker = run("import atexit, os, sys\natexit.register(os.kill, os.getpid(), 15)\nsys.exit('no lr')")
    assert worker.exit.code == -signal.SIGTERM
    assert worker.record() is None


def test_what_a_pool_passes_on_is_named_at_the_place_of_its_process(run):
    worker = run(
        """\
        from concurrent.futures import ProcessPoolExecutor
        def load(number):
            try: {}["k"]
            except KeyError as error: raise ValueError(f"bad shard {number}") from error
        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as pool: pool.submit(load, 3).result()
        """
    )
    assert worker.judged().summary == "ValueError: bad shard 3, from KeyError: 'k'"
    assert [cause[0] for cause in worker.record().causes] == ["in a process of the pool", "from"]
    assert worker.record().causes[-1][3] == "train.py:3"


def test_a_handled_exception_and_a_good_end_leave_no_record(run):
    worker = run("try:\n    1/0\nexcept ZeroDivisionError:\n    pass")
    assert worker.exit.code == 0
    assert not worker.error_file.exists()


CHILDREN = {
    "os.fork": """\
        import os
        pid = os.fork()
        if pid == 0:
            raise ValueError("in the child")
        os.waitpid(pid, 0)
        """,
    "multiprocessing fork": """\
        import multiprocessing
        def child():
            raise ValueError("in the child")
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        """,
    "multiprocessing spawn": """\
        import multiprocessing
        def child():
            raise ValueError("in the child")
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
        """,
    "subprocess": """\
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "raise ValueError('in the child')"])
        """,
}


@pytest.mark.parametrize("way", CHILDREN)
def test_children_of_the_worker_leave_no_record(run, way):
    worker = run(CHILDREN[way])
    assert worker.exit.code == 0
    assert "ValueError: in the child" in worker.stderr
    assert not worker.error_file.exists()


@pytest.mark.parametrize("way", CHILDREN)
def test_the_workers_own_failure_is_recorded_after_its_childrens(run, way):
    source = textwrap.dedent(CHILDREN[way]) + 'if __name__ == "__main__":\n    raise KeyError("own")\n'
    record = run(source).record()
    assert record is not None
    assert record.type == "KeyError"


def test_a_worker_behind_a_shell_is_armed(tmp_path):
    (tmp_path / "train.py").write_text("raise ValueError('boom')")
    shell = ("/bin/sh", "-c", f"{sys.executable} train.py; exit 5")
    worker = Worker(tmp_path, [], {}, interpreter=shell)
    record = worker.record()
    assert worker.exit.code == 5
    assert record is not None
    assert record.type == "ValueError"


def test_a_worker_that_executes_itself_again_is_armed_again(run):
    worker = run(
        """\
        import os, sys
        if len(sys.argv) == 1:
            os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
        raise ValueError("second life")
        """
    )
    record = worker.record()
    assert record is not None
    assert record.message == "second life"


def test_a_segmentation_fault_leaves_the_python_stack(run, tmp_path):
    worker = run("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()")
    record = worker.record()
    assert worker.exit.code == -signal.SIGSEGV
    assert worker.stderr == ""
    assert record is not None
    assert (record.source, record.message) == ("faulthandler", "Segmentation fault")
    assert [frame[1:3] for frame in record.frames[:2]] == [(4, "<module>"), (3, "crash")]
    assert worker.judged().summary == "killed by SIGSEGV (11)"


def test_a_fault_handler_that_the_script_enables_itself_does_no_harm(run):
    worker = run("import ctypes, faulthandler\nfaulthandler.enable(all_threads=True)\nctypes.string_at(0)")
    assert worker.exit.code == -signal.SIGSEGV
    assert worker.record() is None
    assert worker.judged().summary == "killed by SIGSEGV (11)"
    record = worker.record(stderr=True)
    assert record is not None
    assert record.frames[0][1:3] == (3, "<module>")


def test_a_fault_handler_that_the_user_asked_for_keeps_its_stream(run):
    worker = run("import ctypes\nctypes.string_at(0)", PYTHONFAULTHANDLER="1")
    assert "Fatal Python error: Segmentation fault" in worker.stderr
    assert not worker.fault_file.exists()


def test_an_exception_whose_text_cannot_be_made_is_recorded_by_its_type(run):
    worker = run("class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Odd")
    record = worker.record()
    assert record is not None
    assert record.type == "Odd"


def test_huge_texts_and_deep_recursion_are_bounded(run):
    worker = run(
        "def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    raise ValueError('x' * 10**7)"
    )
    record = worker.record()
    assert worker.error_file.stat().st_size < 1 << 20
    assert record is not None
    assert record.type == "ValueError"
    deep = run("def f(n):\n    return f(n + 1)\nf(0)").record()
    assert deep is not None
    assert deep.type == "RecursionError"
    assert len(deep.frames) <= 160


@pytest.mark.parametrize("where", ["/proc/nowhere/error.json", "/dev/null/error.json"])
def test_an_error_file_that_cannot_be_written_changes_nothing_for_the_script(run, where):
    worker = run(UNDECORATED, TORCHELASTIC_ERROR_FILE=where, ELASTIC_FAULT_FILE=where)
    assert worker.exit.code == 1
    assert worker.stderr.startswith("Traceback")
    assert worker.stderr.rstrip().endswith("ValueError: boom")


def test_a_broken_write_is_noted_beside_the_file(run, tmp_path):
    target = tmp_path / "taken"
    target.mkdir()
    worker = run(UNDECORATED, TORCHELASTIC_ERROR_FILE=str(target))
    assert worker.exit.code == 1
    assert "IsADirectoryError" in (tmp_path / "taken.note").read_text()


def test_without_the_variable_the_hook_is_inert(run):
    worker = run(
        "import sys\nassert sys.excepthook is sys.__excepthook__\n"
        "assert not [name for name in sys.modules if name.startswith('elastic_core')]\nraise ValueError",
        ELASTIC_WORKER_HOOKS="0",
    )
    assert "AssertionError" not in worker.stderr
    assert not worker.error_file.exists()
    assert not worker.fault_file.exists()


def test_the_armed_hook_imports_next_to_nothing(run):
    source = "import sys\nprint(*sorted(sys.modules))"
    armed = set(run(source).stdout.split())
    inert = set(run(source, ELASTIC_WORKER_HOOKS="0").stdout.split())
    ours = {"elastic_core", "elastic_core._version", "elastic_core.worker", "elastic_core.worker.startup"}
    assert armed - inert == ours | {"atexit", "faulthandler"}


def test_functions_of_hooks_are_called_before_the_script_which_runs_whatever_they_raise(run, tmp_path):
    (tmp_path / "acme.py").write_text(
        "import sys\ndef begin():\n    sys.acme = 'here'\ndef broken():\n    raise KeyError('seat')\n"
    )
    worker = run(
        "import sys\nprint(sys.acme)",
        PYTHONPATH=str(tmp_path),
        ELASTIC_STARTUP="acme:broken,nowhere.to:be,acme:begin",
    )
    assert (worker.exit.code, worker.stdout) == (0, "here\n")
    notes = Path(f"{worker.error_file}.note").read_text()
    assert "KeyError: 'seat'" in notes
    assert "No module named 'nowhere'" in notes


def test_an_exception_after_our_signal_belongs_to_the_stop(run):
    worker = run(
        """\
        import os, signal
        def handler(signum, frame):
            raise RuntimeError("told to stop")
        signal.signal(signal.SIGTERM, handler)
        os.kill(os.getpid(), signal.SIGTERM)
        while True: pass
        """
    )
    record = worker.record()
    assert record is not None
    before = WorkerExit(
        local_rank=0,
        global_rank=0,
        pid=1,
        code=1,
        at_s=1,
        at_ns=worker.exit.at_ns,
        runtime_s=worker.exit.runtime_s,
        stop_signal=signal.SIGTERM,
        stop_sent_ns=record.timestamp_ns - 1,
    )
    assert judge(before, record).origin is Origin.STOPPED


# --- the decorators


OURS = """\
    from elastic_core.worker import record

    @record
    def main():
        raise ValueError("boom")

    main()
    """


def test_our_decorator_records_once_with_the_hook_and_without(run):
    for hooks, functions in (("1", ["<module>", "main"]), ("0", ["main"])):
        worker = run(OURS, ELASTIC_WORKER_HOOKS=hooks)
        found = worker.record()
        assert found is not None
        assert (found.source, found.message) == ("record", "boom")
        assert [frame[2] for frame in found.frames] == functions
        assert worker.stderr.count("ValueError: boom") == 1
        worker.error_file.unlink()


def test_our_decorator_logs_the_error_where_there_is_no_file(run):
    worker = run(OURS, ELASTIC_WORKER_HOOKS="0", TORCHELASTIC_ERROR_FILE="")
    assert worker.exit.code == 1
    assert worker.stderr.startswith("uncaught ValueError: boom\nTraceback")
