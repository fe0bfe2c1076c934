"""Workers that are over their time."""

from patience import patience

ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
CLIENT = """
import os, sys, time
from elastic_core.compat.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
rank, round_ = os.environ["RANK"], os.environ["ELASTIC_ROUND"]
"""
LATE = (
    CLIENT
    + f"LIMIT_S = {patience(0.3):g}  # so that one that gets no turn for a moment is where it is to be late\n"
    + """
def load_batch():
    time.sleep(60)  # here

os.write(1, f"rank {rank} round {round_}\\n".encode())
if rank == "1" and round_ == "0":
    with timer.expires(LIMIT_S, scope="load"):
        load_batch()
with timer.expires(30):
    pass
"""
)
