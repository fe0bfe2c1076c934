"""What Kubernetes gives to the container of a manifest's pod."""

import re


def job_spec_of(document):
    """Return the specification of a Job, or of the one Job of a JobSet."""
    spec = document["spec"]
    if document["kind"] == "JobSet":
        (replicated,) = spec["replicatedJobs"]
        spec = replicated["template"]["spec"]
    return spec


def pod_template_of(document):
    """Return the pod template of a Job or a JobSet."""
    return job_spec_of(document)["template"]


def host_of(document, index):
    """Return the host name that a pod gets."""
    name = document["metadata"]["name"]
    return f"{name}-{index}" if document["kind"] == "Job" else f"{name}-nodes-0-{index}"


def container_of(document):
    (container,) = pod_template_of(document)["spec"]["containers"]
    return container


def environment_of(document, index, *, uid, attempt=0, pod_name="", pod_ip="10.1.2.3", secrets=None):
    """Return the variables that the kubelet would give: the manifest's, the controllers', and the container runtime's.

    Args:
        document: A Job or a JobSet.
        index: Of the pod.
        uid: Of the Job or the JobSet.
        attempt: Of the JobSet.
        pod_name: Default: one such as the Job controller makes.
        pod_ip: The pod's address.
        secrets: `SECRET:KEY` to text.
    """
    host = host_of(document, index)
    labels = {"batch.kubernetes.io/controller-uid": uid} if document["kind"] == "Job" else {}
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    if document["kind"] == "JobSet":
        labels = {"batch.kubernetes.io/controller-uid": "of-the-job", "jobset.sigs.k8s.io/jobset-uid": uid}
        annotations["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
    fields = {"metadata.name": pod_name or f"{host}-x8kd2", "status.podIP": pod_ip}
    fields |= {f"metadata.labels['{key}']": text for key, text in labels.items()}
    fields |= {f"metadata.annotations['{key}']": text for key, text in annotations.items()}
    found = {"HOSTNAME": host, "JOB_COMPLETION_INDEX": str(index)}
    for variable in container_of(document)["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            key = source["secretKeyRef"]
            found[variable["name"]] = (secrets or {}).get(f"{key['name']}:{key['key']}", "secret")
        else:
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], variable.get("value", ""))
    return found
