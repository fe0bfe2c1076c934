"""Settings as the core would make them."""

from collections.abc import Sequence
from typing import Any

from elastic_core.api import OptionSpec, RendezvousSettings


def rendezvous_settings(
    *,
    run_id: str,
    declared: Sequence[OptionSpec] = (),
    **given: Any,  # noqa: ANN401  # fields of RendezvousSettings; the record checks the names
) -> RendezvousSettings:
    """Return settings of a run of one node, but for what is given.

    Args:
        run_id: The run's id.
        declared: A backend's `options`: those that are not in `given["options"]` get their defaults, lists in
            `given["lists"]` none.
        given: Any field of `RendezvousSettings`.
    """
    base: dict[str, Any] = {"backend": "test", "endpoint": "", "min_nodes": 1, "max_nodes": 1, "local_world_size": 1}
    options = {spec.name: spec.default for spec in declared if not spec.many} | dict(given.pop("options", {}))
    lists = {spec.name: () for spec in declared if spec.many} | dict(given.pop("lists", {}))
    return RendezvousSettings(**(base | given), run_id=run_id, options=options, lists=lists)
