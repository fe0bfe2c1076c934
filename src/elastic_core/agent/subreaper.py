"""Become the parent of what workers leave behind, instead of init: for a process that is an agent and nothing else.

Orphans of workers are then descendants of the agent however they detached themselves, so that a sweep finds all.
"""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def become_subreaper() -> bool:
    """Make this process the subreaper of its descendants; return whether the kernel did so.

    Called: before the first worker is started, since an orphan that init adopted never comes back. It holds until the
    process ends or `stop_being_subreaper`; children don't inherit it. Whoever calls it also calls
    `multiprocessing.sweep.reap_adopted` at each SIGCHLD.
    """
    return _set(1)


def stop_being_subreaper() -> bool:
    """Let later orphans go to init again; return whether the kernel did so."""
    return _set(0)


def _set(value: int) -> bool:
    import ctypes  # 1.4 ms, and only `elastic run` needs it

    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):  # no Linux, or a statically linked interpreter
        return False
    unused = ctypes.c_ulong(0)
    return bool(prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(value), unused, unused, unused) == 0)
