"""The pods of a Job or a JobSet as processes of this machine, in the environment that a kubelet gives: for tests.

It plays, of the Job controller, that a pod is made for each index and made anew, and what the pod failure policy says;
of the kubelet, the variables, SIGTERM, the grace period and SIGKILL; of the cluster's DNS, the names of a headless
Service. Each pod has a loopback address of its own.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from pods import container_of, environment_of, host_of, job_spec_of, pod_template_of

_DNS = """
import json, os, socket
_names = os.environ["POD_NAMES"]
_ask = socket.getaddrinfo
def _resolve(host, *args, **more):
    with open(_names) as file:
        names = json.load(file)
    return _ask(names.get(host, host), *args, **more)
socket.getaddrinfo = _resolve
"""
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
_EXITS_WITHIN_S = 60
_ENDS = {"Job": "Complete", "JobSet": "Completed"}
"""What makes pods, and the condition of its good end."""


class Kubelet:
    """Runs the pods of what an API server is given, until `close`. `secrets`: `SECRET:KEY` to text."""

    def __init__(self, api, folder):
        self.api = api
        self.folder = folder
        self.secrets = {}
        self._processes = {}
        self._threads = []
        self._closing = False
        self._lock = threading.RLock()
        self._net = f"127.{random.SystemRandom().randrange(2, 250)}.{random.SystemRandom().randrange(1, 250)}"
        (folder / "dns").mkdir()
        (folder / "dns" / "sitecustomize.py").write_text(_DNS)
        (folder / "runtime").mkdir(mode=0o700)
        self._names = folder / "names.json"
        api.on_applied = self._begin
        api.on_deleted = self._end

    def close(self):
        self._closing = True
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                process.kill()
        for thread in self._threads:
            thread.join(_EXITS_WITHIN_S)

    def evict(self, name):
        """Have a pod leave its node: it is told to stop, and its Job makes another one."""
        pod = self.api.get("Pod", name)
        pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
        self._processes[name].send_signal(signal.SIGTERM)

    # --- the Job controller

    def _begin(self, document):
        if document["kind"] not in _ENDS:
            return
        spec, template = job_spec_of(document), pod_template_of(document)["spec"]
        service = template.get("subdomain", document["metadata"]["name"])  # a JobSet's is its own
        hosts = {host_of(document, each): f"{self._net}.{each + 1}" for each in range(spec["completions"])}
        self._names.write_text(json.dumps({f"{host}.{service}": address for host, address in hosts.items()}))
        document["status"] = {"succeeded": 0, "failed": 0, "conditions": []}
        for index in range(spec["completions"]):
            self._start(document, index)

    def _start(self, job, index):
        with self._lock:
            number = sum(kind == "Pod" for kind, _, _ in self.api.objects)
            name = f"{host_of(job, index)}-{number:05d}"
            template, container = pod_template_of(job), container_of(job)
            variables = environment_of(
                job,
                index,
                uid=job["metadata"]["uid"],
                pod_name=name,
                pod_ip=f"{self._net}.{index + 1}",
                secrets=self.secrets,
            )
            marks = {"batch.kubernetes.io/job-completion-index": str(index), **template["metadata"]["labels"]}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": marks, "creationTimestamp": f"2026-11-23T07:00:{number:02d}Z"},
                "spec": {**template["spec"], "nodeName": f"n{index}"},
                "status": {"phase": "Running"},
            }
            self.api.put(pod, job["metadata"]["namespace"])
            self.api.write(name)
            process = subprocess.Popen(
                [*container["command"], *container["args"]],
                cwd=self.folder,
                env={**self._image(), **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self._processes[name] = process
            thread = threading.Thread(target=self._watch, args=(job, pod, index, process))
            self._threads.append(thread)
            thread.start()

    def _image(self):
        """Return the variables of the container's image, and what stands for the cluster's DNS."""
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        here = {"PYTHONPATH": str(self.folder / "dns"), "POD_NAMES": str(self._names), "OMP_NUM_THREADS": "1"}
        return kept | here | {"XDG_RUNTIME_DIR": str(self.folder / "runtime")}

    def _watch(self, job, pod, index, process):
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            self.api.write(pod["metadata"]["name"], lines[-1])
        process.stdout.close()
        code = process.wait()
        code = 128 - code if code < 0 else code
        with self._lock:
            self._ended(job, pod, index, code, lines)
            self.api.write(pod["metadata"]["name"], end=True)

    def _ended(self, job, pod, index, code, lines):
        message = "\n".join(lines[-80:]) if code else ""  # terminationMessagePolicy: FallbackToLogsOnError
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        conditions = pod["status"].get("conditions", [])
        state = {"name": "train", "image": "", "imageID": "", "ready": False, "restartCount": 0}
        state["state"] = {"terminated": terminated}
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "conditions": conditions,
            "containerStatuses": [state],
        }
        status = job["status"]
        if self._closing or status["conditions"]:
            return
        if code == 0:
            status["succeeded"] += 1
            if status["succeeded"] == job_spec_of(job)["completions"]:
                status["conditions"].append({"type": _ENDS[job["kind"]], "status": "True"})
            return
        action = self._action(job, code, {each["type"] for each in conditions})
        status["failed"] += action == "Count"
        if action == "FailJob" or status["failed"] > job_spec_of(job)["backoffLimit"]:
            reason = "PodFailurePolicy" if action == "FailJob" else "BackoffLimitExceeded"
            status["conditions"].append({"type": "Failed", "status": "True", "reason": reason})
            self._stop(job)
        else:
            self._start(job, index)

    def _action(self, job, code, conditions):
        for rule in job_spec_of(job)["podFailurePolicy"]["rules"]:
            if any(each["type"] in conditions for each in rule.get("onPodConditions", [])):
                return rule["action"]
            if code in rule.get("onExitCodes", {}).get("values", []):
                return rule["action"]
        return "Count"

    # --- the end

    def _end(self, document):
        if document["kind"] in _ENDS:
            document["status"]["conditions"].append({"type": "Failed", "status": "True", "reason": "deleted"})
            self._stop(document)

    def _stop(self, job):
        """Tell the pods of a Job to stop, and kill them when their grace period is over."""
        grace_s = pod_template_of(job)["spec"]["terminationGracePeriodSeconds"]
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            timer = threading.Timer(grace_s, process.kill)
            timer.daemon = True
            timer.start()
