"""The program of a fresh interpreter that becomes the worker of a function, or the server that forks such workers.

`python -u bootstrap.py FD NAME`: the file FD has pickled orders from the process that started this one; NAME is for
people who list processes. Only the standard library is imported before the caller's `sys.path` is set.
"""

import pickle
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # our own directory
    from multiprocessing import spawn

    _fd = int(sys.argv[1])
    with open(_fd, "rb") as _file:
        _orders = pickle.load(_file)
    spawn.prepare(_orders["interpreter"])
    if "control_fd" in _orders:
        from elastic_torchrun.functions import server

        server.begin(_orders)
    else:
        from elastic_torchrun.functions import child

        child.begin(_orders)
