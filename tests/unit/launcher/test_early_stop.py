"""Stop signals before the loop runs: delayed, and inherited by no process."""

import os
import signal
import subprocess
import sys

import pytest

from elastic_core.launcher.early_stop import EarlyStop, early_stops, held

MASK = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"


def test_a_delayed_signal_takes_effect_after_the_block_and_no_process_inherits_it():
    before = signal.getsignal(signal.SIGTERM)
    masks = []

    def begin():
        with held([signal.SIGTERM]):
            os.kill(os.getpid(), signal.SIGTERM)
            started = subprocess.run([sys.executable, "-c", MASK], capture_output=True, text=True, check=True)
            masks.append(started.stdout)

    with early_stops([signal.SIGTERM]):
        with pytest.raises(EarlyStop) as caught:
            begin()
        assert caught.value.signum == signal.SIGTERM
    assert masks == ["[]\n"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held([signal.SIGHUP]):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
