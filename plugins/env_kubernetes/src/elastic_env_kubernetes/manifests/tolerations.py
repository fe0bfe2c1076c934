"""Tolerations with which a pod leaves a lost host sooner than by Kubernetes' default of 300 s."""

from typing import Any, Final

LOST_HOST_S: Final = 30
"""Seconds that a pod stays bound to a host after the control plane has noticed that its kubelet is silent."""
_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_EFFECT: Final = "NoExecute"


def tolerate_lost_hosts(pod: dict[str, Any]) -> None:
    """Add a toleration of `LOST_HOST_S` for each taint of a lost host that a pod's `spec` does not tolerate.

    Source: Kubernetes, admission plugin DefaultTolerationSeconds, which adds those of 300 s by the same rule.
    """
    present = pod.get("tolerations") or []
    missing = [
        taint
        for taint in _TAINTS
        if not any(
            each.get("key") in (taint, None, "") and each.get("effect") in (_EFFECT, None, "") for each in present
        )
    ]
    added = [
        {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": LOST_HOST_S} for taint in missing
    ]
    pod["tolerations"] = [*present, *added]
