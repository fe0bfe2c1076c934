"""Workers that are over their time."""

ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
CLIENT = """
import os, sys, time
from elastic_core.compat.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
rank, round_ = os.environ["RANK"], os.environ["ELASTIC_ROUND"]
"""
LATE = (
    CLIENT
    + """
def load_batch():
    time.sleep(60)  # here

os.write(1, f"rank {rank} round {round_}\\n".encode())
if rank == "1" and round_ == "0":
    with timer.expires(0.3, scope="load"):
        load_batch()
with timer.expires(30):
    pass
"""
)
