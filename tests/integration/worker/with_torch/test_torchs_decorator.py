"""Our hook and torch's decorator in one interpreter."""

import json

from worker_kit import UNDECORATED


def test_torch_can_read_what_the_hook_writes(run):
    message = json.loads(run(UNDECORATED).error_file.read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert int(message["extraInfo"]["timestamp"]) == message["extraInfo"]["timestamp_ns"] // 10**9
    assert message["extraInfo"]["py_callstack"].endswith("ValueError: boom\n")


TORCH = """\
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise ValueError("boom")

    main()
    """


def test_torchs_decorator_keeps_its_content_and_gains_ours(run):
    worker = run(TORCH)
    content = json.loads(worker.error_file.read_text())["message"]
    assert content["message"] == "ValueError: boom"
    assert "multiprocessing/errors/__init__.py" in content["extraInfo"]["py_callstack"]
    torchs_s, ours_ns = int(content["extraInfo"]["timestamp"]), content["extraInfo"]["timestamp_ns"]
    begun_s, ended_s = worker.exit.at_ns / 10**9 - worker.exit.runtime_s, worker.exit.at_ns / 10**9
    assert begun_s - 1 < torchs_s <= ours_ns / 10**9 < ended_s  # torch cuts its own off
    found = worker.record()
    assert found is not None
    assert (found.source, found.type) == ("record", "ValueError")
    assert [frame[2] for frame in found.frames] == ["<module>", "main"]


def test_torchs_decorator_alone_is_read_with_its_files_time(run):
    worker = run(TORCH, ELASTIC_WORKER_HOOKS="0")
    found = worker.record()
    assert found is not None
    assert (found.source, found.type, found.message) == ("record", "ValueError", "boom")
    assert found.timestamp_ns == worker.error_file.stat().st_mtime_ns
    assert [frame[2] for frame in found.frames] == ["main"]


def test_the_root_cause_of_torchs_child_failed_error_stays(run, tmp_path):
    child = tmp_path / "child.json"
    child.write_text(
        json.dumps({"message": {"message": "KeyError: 'x'", "extraInfo": {"py_callstack": "", "timestamp": "1700"}}})
    )
    worker = run(
        f"""\
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record

        @record
        def main():
            raise ChildFailedError("inner", {{0: ProcessFailure(0, 5, 3, {str(child)!r})}})

        main()
        """
    )
    content = json.loads(worker.error_file.read_text())["message"]
    assert (content["message"], content["errorCode"]) == ("KeyError: 'x'", 3)
    found = worker.record()
    assert found is not None
    assert (found.type, found.message) == ("KeyError", "'x'")
