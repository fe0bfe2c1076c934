"""What `/proc` reports of a process, without what is no sign of its work."""

import ctypes
import os
import threading

from elastic_watch import vitals

PR_SET_NAME = 15


def test_bytes_of_the_store_that_torch_serves_do_not_count():
    begun, go, done, end = (threading.Event() for _ in range(4))

    def serve():
        assert ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_tcpstore_uv") == 0
        begun.set()
        go.wait()
        write(5000)
        done.set()
        end.wait()

    store = threading.Thread(target=serve)
    store.start()
    try:
        begun.wait()
        before = vitals.traffic_of(os.getpid())
        go.set()
        done.wait()
        served = vitals.traffic_of(os.getpid())
        write(700)
        after = vitals.traffic_of(os.getpid())
    finally:
        end.set()
        store.join()
    # This process reads files in /proc, and another thread may write a little, but neither 5,000 bytes.
    assert before.written <= served.written < before.written + 700
    assert after.written >= served.written + 700


def write(count):
    with open(os.devnull, "wb", buffering=0) as sink:
        sink.write(bytes(count))
