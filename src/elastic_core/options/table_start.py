"""Options about what starts, and where: workers, nodes and their rendezvous."""

from elastic_core.options.option import OptionRow, Section, row

START: tuple[OptionRow, ...] = (
    # --- workers ---
    row(
        Section.WORKERS,
        "nproc-per-node",
        "N|auto|gpu|cpu|xpu",
        "Workers on this node: a number, or one per GPU, CPU core or XPU; auto: one per accelerator, else per core.",
        default="1",
        torch=True,
    ),
    row(
        Section.WORKERS,
        "module",
        None,
        "SCRIPT is a module name, run as with 'python -m'.",
        short="m",
        torch=True,
    ),
    row(
        Section.WORKERS,
        "no-python",
        None,
        "SCRIPT is a program of any kind: run it as it is, without the Python interpreter.",
        torch=True,
    ),
    row(
        Section.WORKERS,
        "devices",
        "LIST",
        "GPUs to use, such as 1,3,5 (or their UUIDs). All workers see the whole list and LOCAL_RANK indexes it; with "
        "--virtual-local-rank each sees its own one. Numbers count within an inherited list of visible devices.",
        default_note="all that are visible",
    ),
    row(
        Section.WORKERS,
        "omp-threads",
        "auto|N",
        "OMP_NUM_THREADS of each worker; auto: usable cores divided by workers, at least 1.",
        default_note="as inherited; 1 where it is unset and there are several workers",
    ),
    row(
        Section.WORKERS,
        "virtual-local-rank",
        None,
        "LOCAL_RANK is 0 in every worker, and each sees only its own device.",
        torch=True,
    ),
    row(
        Section.WORKERS,
        "numa-binding",
        "MODE",
        "Bind each worker to processors near its GPU: node (all of the NUMA node), socket, exclusive (cores of its "
        "own) or core-complex (those that share a cache); without GPUs workers are split evenly.",
        torch=True,
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    row(Section.WORKERS, "role", "NAME", "Role of the workers, for their names.", default="default", torch=True),
    # --- nodes and rendezvous ---
    row(
        Section.NODES,
        "nnodes",
        "N|MIN:MAX",
        "Number of nodes, or the fewest to start with and the most to take in.",
        default="1:1",
        torch=True,
    ),
    row(
        Section.NODES,
        "standalone",
        None,
        "One node on its own: no rendezvous; overrides the --rdzv-... options.",
        torch=True,
    ),
    row(
        Section.NODES,
        "rdzv-backend",
        "NAME",
        "How the nodes find each other; 'elastic plugins' lists what is installed. One node alone needs none: with the "
        "default and no endpoint it uses 'local'.",
        default="static",
        torch=True,
    ),
    row(
        Section.NODES,
        "rdzv-endpoint",
        "HOST[:PORT]",
        "Where the rendezvous backend is, in its own form; left out, each backend has its own default.",
        default="",
        torch=True,
    ),
    row(
        Section.NODES,
        "rdzv-id",
        "ID",
        "Name of the run, the same on all nodes; needed with several nodes, except for 'static'.",
        default="none",
        default_note="a fresh one on one node",
        torch=True,
    ),
    row(
        Section.NODES,
        "rdzv-conf",
        "K=V,K=V",
        "Options of the rendezvous backend; times in seconds.",
        default="",
        torch=True,
    ),
    row(
        Section.NODES,
        "node-rank",
        "N",
        "Rank of this node with the 'static' backend; with others a wish, met where that rank is free.",
        default="0",
        torch=True,
    ),
    row(
        Section.NODES,
        "master-addr",
        "HOST",
        "MASTER_ADDR, the address of node 0; for the 'static' backend, and for one node.",
        default="127.0.0.1",
        torch=True,
    ),
    row(
        Section.NODES,
        "master-port",
        "PORT",
        "MASTER_PORT, where rank 0 listens; for the 'static' backend, and for one node.",
        default_note="29500; a free port on one node",
        torch=True,
    ),
    row(
        Section.NODES,
        "local-addr",
        "HOST",
        "Address of this node, as the others can reach it.",
        default_note="found out",
        torch=True,
    ),
    row(
        Section.NODES,
        "agent-port",
        "PORT",
        "UDP port at which this agent tells the others whether it reaches the store, for firewalls to let through; "
        "agents of one host need one each.",
        default_note="a free one",
    ),
    row(
        Section.NODES,
        "agent-store",
        None,
        "Host the workers' torch store in a process beside node 0's agent, not in the worker with rank 0; the first "
        "start then waits until that process has imported torch.",
    ),
    row(
        Section.NODES,
        "node-id",
        "ID",
        "Name of this node in logs and reports.",
        default_note="host name",
    ),
    row(
        Section.NODES,
        "rdzv-attempt",
        "N",
        "Which attempt at the run this is, the same on all nodes; another one begins a run anew where the last has "
        "ended.",
        default_note="the scheduler's count of restarts (Slurm, JobSet, AWS Batch), else 0",
    ),
    row(
        Section.NODES,
        "spares",
        "K",
        "How many nodes beyond the most that --nnodes takes in may wait, to step in for one that is lost; more are "
        "sent home.",
        default_note="any number",
    ),
    row(
        Section.NODES,
        "allow-mismatch",
        "KEY,KEY",
        "In what this node may differ from the run that it joins (repeatable): nproc, role, nnodes, entrypoint, "
        "arguments, backend_options, torch, python, policy.",
        many=True,
    ),
    row(
        Section.NODES,
        "join-timeout",
        "SECONDS",
        "How long to wait for the fewest nodes; as join_timeout=SECONDS in --rdzv-conf.",
        default_note="600",
    ),
    row(
        Section.NODES,
        "connect-timeout",
        "SECONDS",
        "How long to try to reach the backend's server at first; as connect_timeout=SECONDS in --rdzv-conf.",
        default_note="60",
    ),
    row(
        Section.NODES,
        "store-outage-grace",
        "SECONDS",
        "How long workers train on when the backend's server is away from all nodes, before --on-store-loss holds.",
        default="120",
    ),
    row(
        Section.NODES,
        "on-store-loss",
        "keep|fail",
        "When the server stays away: keep the workers until they end, or fail the run.",
        default="keep",
        choices=("keep", "fail"),
    ),
)
