"""Classes that lay out workers' logs, in an installed distribution."""

WORKER = """
import os, sys, time
rank = os.environ["RANK"]
os.write(1, f"loss {rank} {os.environ.get('WHERE', '')[-5:]} {os.environ.get('NOTED', '')}\\n".encode())
print("on stderr", rank, file=sys.stderr, flush=True)
if len(sys.argv) > 1:
    open(f"said{rank}", "w").close()
    while rank == "0" and not os.path.exists("said1"):
        time.sleep(0.005)
    if rank == "0":
        raise RuntimeError("the reason")
"""
