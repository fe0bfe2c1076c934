"""The ledger's file: what a write costs as the ledger grows."""

import tracemalloc

from elastic_report.ledger.document import LEDGER_FILE, Begin, Note
from elastic_report.ledger.reading import decode_ledger
from elastic_report.ledger.writer import LedgerFile
from ledger_kit import STARTED_NS, STARTED_S
from support import wait_for

BEGIN = Begin(
    run_id="bert-7", node_id="n0", host="h", incarnation="x", pid=1, started_s=STARTED_S, started_ns=STARTED_NS
)


def note(number):
    return Note(at_s=STARTED_S + number, name="failure", text="x" * 500)


def test_a_write_copies_only_the_new_lines(tmp_path):
    ledger = LedgerFile(BEGIN, run_dir=lambda: str(tmp_path), record_dir=lambda: "", notice=print)
    path = tmp_path / LEDGER_FILE

    def written():
        return path.exists() and path.read_bytes().count(b"\n") == lines

    lines = 1001
    ledger.add(note(number) for number in range(1000))
    wait_for(written, within_s=20)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        for _ in range(3):  # one of three additions may enlarge the buffer of the text
            lines += 1
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            ledger.add([note(lines)])
            wait_for(lambda: not ledger._writing, within_s=20)
            peak = tracemalloc.get_traced_memory()[1] - before
            if peak < size / 4:
                break
    finally:
        tracemalloc.stop()
    assert peak < size / 4
    ledger.close(kept=True, within_s=20)
    assert len(decode_ledger(path.read_bytes(), where="x").lines) == lines - 1
