"""What the parts of a run are told of its settings."""

import os
import signal
from pathlib import Path

from elastic_core.agent.parts import AgentOptions
from elastic_core.options.settings import RunSettings
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
FORWARDED_SIGNALS = frozenset({signal.SIGUSR1, signal.SIGUSR2})

_WITHOUT_STORE = ("local", "static")


def hook_settings(settings: RunSettings, run_dir: str) -> HookSettings:
    """Return what every hook is built with; the registry adds its name and its options."""
    return HookSettings(
        name="",
        run_id=settings.run_id,
        run_dir=run_dir,
        local_world_size=settings.nproc_per_node,
        devices=settings.devices,
    )


def rendezvous_settings(settings: RunSettings, node_id: str, incarnation: str) -> RendezvousSettings:
    """Return what a rendezvous handler is told."""
    return RendezvousSettings(
        backend=settings.rdzv_backend,
        run_id=settings.run_id,
        endpoint=settings.rdzv_endpoint,
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        local_world_size=settings.nproc_per_node,
        role=settings.role,
        node_id=node_id,
        node_rank=settings.node_rank,
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        local_addr=settings.local_addr,
        agent_port=settings.agent_port,
        monitor_interval_s=settings.monitor_interval_s,
        incarnation=incarnation,
        attempt=settings.rdzv_attempt,
        attempt_given=settings.rdzv_attempt_given,
        job=settings.rdzv_job,
        spares=settings.spares,
        fingerprint=_fingerprint(settings),
        allow_mismatch=settings.allow_mismatch,
        max_membership_changes=settings.max_membership_changes,
        store_outage_grace_s=settings.store_outage_grace_s,
        on_store_loss=settings.on_store_loss,
    )


def _fingerprint(settings: RunSettings) -> dict[str, str]:
    if settings.rdzv_backend in _WITHOUT_STORE:
        return {}
    from elastic_core.launcher.fingerprint import run_fingerprint  # milliseconds that other runs save
    from elastic_core.rendezvous.identity import ALLOWABLE

    made = run_fingerprint(settings)
    # Where everything may differ (a library call), nobody who comes later is compared with this node either.
    fixed = {key: text for key, text in made.items() if key not in ALLOWABLE}
    return fixed if ALLOWABLE.issubset(settings.allow_mismatch) else made


def policy_settings(settings: RunSettings) -> PolicySettings:
    """Return what a failure handler is told."""
    return PolicySettings(
        name=settings.policy,
        max_restarts=settings.max_restarts,
        restart_window_s=settings.restart_window_s,
        restart_backoff_s=settings.restart_backoff_s,
        fatal_exit_codes=settings.fatal_exit_codes,
        same_failure_limit=settings.same_failure_limit,
        run_id=settings.run_id,
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
    )


def stop_signals(settings: RunSettings) -> tuple[int, ...]:
    """Return the signals that end the run, of those that are handled."""
    return tuple(sorted({signal.Signals[name] for name in settings.signals_to_handle} & STOP_SIGNALS))


def agent_options(settings: RunSettings, node_id: str, run_dir: Path) -> AgentOptions:
    """Return what the agent's loop is told."""
    listed = {signal.Signals[name] for name in settings.signals_to_handle}
    return AgentOptions(
        run_id=settings.run_id,
        node_id=node_id,
        run_dir=str(run_dir),
        pid=os.getpid(),
        shutdown_timeout_s=settings.shutdown_timeout_s,
        exit_timeout_s=settings.exit_timeout_s,
        stop_signals=stop_signals(settings),
        forwarded_signals=tuple(sorted((listed | FORWARDED_SIGNALS) - STOP_SIGNALS)),
        keep_interrupt=settings.debug_rank is not None,
    )
