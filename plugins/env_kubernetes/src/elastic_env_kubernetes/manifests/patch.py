"""Patches of a manifest: strategic merge, as in `kubectl patch`, into an object or the pod template.

Maps are merged key by key, and null removes a key. A list is replaced, unless Kubernetes identifies its items by a key
(`MERGE_KEYS`): an item with the key of another one is merged into it, and any other is added at the end.
`$patch: delete` removes a map or such an item, `$patch: replace` replaces a map or such a list as a whole.
Source: Kubernetes, API reference, `x-kubernetes-patch-merge-key`; JobSet's list of jobs is a map by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from elastic_core.api import ConfigError, Record
from elastic_env_kubernetes.manifests.pod_template import CONTAINER
from elastic_env_kubernetes.manifests.run import NODES, Run
from elastic_env_kubernetes.manifests.tolerations import tolerate_lost_hosts

MERGE_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "evictionResponders": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "replicatedJobs": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists, each with the field that identifies its items. All other lists, such as tolerations, are replaced."""
_SERVICE_KEYS: Final = MERGE_KEYS | {"ports": "port"}
_FINALIZERS: Final = "finalizers"
"""The one list of texts that is merged: missing texts are added."""
_TEXT_MAPS: Final = ("annotations", "labels", "matchLabels", "nodeSelector")
_TEXT_FIELD: Final = "value"
"""The field of a variable's value, in which YAML needs quotes around a number or `true`."""
_DIRECTIVE: Final = "$patch"
_REPLACE: Final = {_DIRECTIVE: "replace"}
_TEMPLATE: Final = ("metadata", "spec")
_HINT: Final = "spec: {nodeSelector: {…}} for the pod template, or kind: Job with spec: {…} for the Job"


class Patch(Record, frozen=True):
    """One document of a patch file."""

    place: str
    """The file and the document's number in it, for errors."""
    content: Any

    def refuse(self, why: str, hint: str = _HINT) -> NoReturn:
        """Raise an error about it.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.place}: {why}", hint=hint)


def patched(run: Run, documents: Sequence[dict[str, Any]], patches: Sequence[Patch]) -> list[dict[str, Any]]:
    """Return a run's objects with patches merged into them, in their order, and with tolerations of lost hosts.

    Raises:
        ConfigError: a patch is malformed, matches no object, or contradicts the rest of the manifest.
    """
    found = list(documents)
    for patch in patches:
        number, content = _target(patch, found)
        keys = _SERVICE_KEYS if found[number]["kind"] == "Service" else MERGE_KEYS
        found[number] = _Merge(patch, keys).of_map(found[number], content, ())
        _check(run, found[-1], patch)
    tolerate_lost_hosts(_pod(found[-1]))
    return found


def _target(patch: Patch, documents: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Return the number of the object that a patch is for, and the patch relative to that object."""
    content = patch.content
    if not isinstance(content, dict):
        patch.refuse(f"it is {_type_name(content)}; expected a map of fields")
    if "kind" not in content:  # of the pod template, in what makes the pods: the last object
        for key in content:
            if key not in _TEMPLATE:
                patch.refuse(f"{key!r} at the top; expected metadata or spec, as in a pod")
        return len(documents) - 1, _around_template(documents[-1], content)
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    fitting = [
        number
        for number, each in enumerate(documents)
        if each["kind"] == content["kind"] and name in (None, each["metadata"]["name"])
    ]
    if len(fitting) != 1:
        objects = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in documents)
        patch.refuse(
            f"{content['kind']}{f' {name}' if name else ''} is {'more than one' if fitting else 'no'} object of this "
            f"manifest ({objects})",
            "kind and metadata.name of one of them, or no kind for the pod template",
        )
    (number,) = fitting
    needed = documents[number]["apiVersion"]
    if content.get("apiVersion", needed) != needed:
        patch.refuse(f"apiVersion is {content['apiVersion']!r}; expected {needed!r}", f"apiVersion: {needed}")
    return number, content


def _around_template(document: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    job = {"spec": {"template": dict(content)}}
    return job if document["kind"] == "Job" else {"spec": {"replicatedJobs": [{"name": NODES, "template": job}]}}


class _Merge:
    """Merges one patch. `where` is always the path of a value in its object, the value's own field last."""

    def __init__(self, patch: Patch, keys: Mapping[str, str]) -> None:
        self._patch = patch
        self._keys = keys

    def of_map(self, old: Mapping[str, Any], new: Mapping[str, Any], where: tuple[str, ...]) -> dict[str, Any]:
        directive = new.get(_DIRECTIVE, "merge")
        if directive not in ("merge", "replace"):  # deletion is done where the map is a value
            self._refuse_directive(directive, where)
        found = {} if directive == "replace" else dict(old)
        for key, value in new.items():
            if key == _DIRECTIVE:
                continue
            if key.startswith("$"):
                self._refuse_directive(key, where)
            if value is None or (isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"):
                found.pop(key, None)
            else:
                found[key] = self._of_value(found.get(key), value, (*where, key))
        return found

    def _of_value(self, old: Any, new: Any, where: tuple[str, ...]) -> Any:  # noqa: ANN401 - what JSON has
        if old is not None and _type_name(old) != _type_name(new):
            self._patch.refuse(f"{_path(where)} is {_type_name(new)}; expected {_type_name(old)}")
        if isinstance(new, dict):
            return self.of_map(old or {}, new, where)
        if isinstance(new, list):
            if key := self._keys.get(where[-1]):
                return self._of_list(old or [], new, where, key)
            if any(isinstance(each, dict) and _DIRECTIVE in each for each in new):
                self._patch.refuse(f"$patch in {_path(where)}, a list that is replaced as a whole", "the whole list")
            return [*dict.fromkeys([*(old or []), *new])] if where[-1] == _FINALIZERS else new
        if not isinstance(new, str) and (where[-1] == _TEXT_FIELD or where[-2:-1] in [(each,) for each in _TEXT_MAPS]):
            self._patch.refuse(f"{_path(where)} is {new!r}; expected a text", "quotes around it")
        return new

    def _of_list(self, old: Sequence[Any], new: Sequence[Any], where: tuple[str, ...], key: str) -> list[Any]:
        """Return a list after a patch; its items are maps with the key field `key`."""
        found: dict[object, Any] = {} if _REPLACE in new else {each[key]: each for each in old}
        for number, item in enumerate(new):
            place = (*where[:-1], f"{where[-1]}[{number}]")
            if item == _REPLACE:
                continue
            if not isinstance(item, dict) or not isinstance(item.get(key), (str, int)):
                self._patch.refuse(f"{_path(place)} has no {key}, by which Kubernetes knows it", f"{key}: …")
            if item.get(_DIRECTIVE) == "delete":
                found.pop(item[key], None)
            elif _DIRECTIVE in item:
                self._refuse_directive(item[_DIRECTIVE], place)
            else:
                found[item[key]] = self.of_map(found.get(item[key], {}), item, place)
        return list(found.values())

    def _refuse_directive(self, directive: object, where: tuple[str, ...]) -> NoReturn:
        self._patch.refuse(
            f"{directive} in {_path(where)} is not understood",
            "$patch: delete in a map or an item, $patch: replace in a map, or as an item of its own in a list",
        )


def _path(where: tuple[str, ...]) -> str:
    return ".".join(where) or "the top"


def _type_name(value: object) -> str:
    return "a map" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a plain value"


# --- what must hold afterwards


def _job(document: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a part of a document
    """Return the specification of the Job of a run."""
    if document["kind"] == "Job":
        return document["spec"]
    return next(each for each in document["spec"]["replicatedJobs"] if each["name"] == NODES)["template"]["spec"]


def _pod(document: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a part of a document
    return _job(document)["template"]["spec"]


def _check(run: Run, document: Mapping[str, Any], patch: Patch) -> None:
    """Reject a patch that contradicts the rest of the manifest, on which the pods depend."""
    try:
        job, pod = _job(document), _pod(document)
        settled = [
            ("metadata.namespace", document["metadata"].get("namespace", ""), run.namespace, "--namespace"),
            ("completions", job["completions"], run.pods, "--nnodes, --spares"),
            ("parallelism", job["parallelism"], run.pods, "--nnodes, --spares"),
            (
                "terminationGracePeriodSeconds",
                pod["terminationGracePeriodSeconds"],
                run.grace_s,
                "--shutdown-timeout, --save-timeout",
            ),
        ]
        images = {each["name"]: each.get("image") for each in [*pod["containers"], *pod.get("initContainers", ())]}
        main = [each["name"] for each in pod["containers"] if each["name"] == CONTAINER]
    except (LookupError, TypeError, AttributeError, StopIteration) as err:
        patch.refuse(f"it leaves no pod of this run ({type(err).__name__}: {err})")
    for field, value, needed, options in settled:
        if value != needed:
            patch.refuse(f"{field} is {value!r}; expected {needed!r}, as the rest of the manifest has it", options)
    if not main:
        patch.refuse(f"the container {CONTAINER!r} is gone", f"- name: {CONTAINER}")
    for name, image in images.items():
        if not image:
            patch.refuse(f"a new container {name!r} has no image; the run's is {CONTAINER!r}", f"- name: {CONTAINER}")
