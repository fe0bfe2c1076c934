"""A small stand-in for a Kubernetes API server: it keeps objects, judges them by the published schemas, and no more.

What it does as a real one does: paths of kinds and namespaces, server-side apply (without merging other managers'
fields), strict validation, fields of a Job that can't be changed, dry runs, label selectors, deletion with propagation,
logs that are followed, bearer tokens, and the answers to what is refused. What it does not: admission, defaults,
watches, events, roles, versions of objects. Controllers are a test's: `on_applied` and `on_deleted`.
"""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml

VERSION = "1.37"
TOKEN = "token-of-ada"
EXTENSIONS = {
    ("jobset.x-k8s.io/v1alpha2", "jobsets"): "JobSet",
    ("monitoring.coreos.com/v1", "servicemonitors"): "ServiceMonitor",
}
KINDS = {("v1", "services"): "Service", ("v1", "pods"): "Pod", ("batch/v1", "jobs"): "Job", **EXTENSIONS}
IMMUTABLE = ("completions", "completionMode", "template", "podFailurePolicy", "selector")
BACKGROUND = "Background"


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class ApiServer:
    """Serves until `close`; `objects` is by kind, namespace and name."""

    def __init__(self):
        self.objects = {}
        self.logs = {}
        """By pod: its lines, and None at the end; a list that grows is followed."""
        self.kinds = dict(KINDS)
        self.forbidden = set()
        """Verbs."""
        self.changed = threading.Condition()
        self.on_applied = self.on_deleted = lambda document: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"api": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, path, *, token=TOKEN):
        """Write a kubeconfig with a context for this server."""
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": {"server": self.url}}],
                    "users": [{"name": "ada", "user": {"token": token}}],
                    "contexts": [
                        {"name": "here", "context": {"cluster": "here", "user": "ada", "namespace": "training"}},
                        {"name": "nobody", "context": {"cluster": "here"}},
                    ],
                }
            )
        )
        return str(path)

    def get(self, kind, name, namespace="training"):
        return self.objects.get((kind, namespace, name))

    def put(self, document, namespace="training"):
        """Keep an object, as a controller does."""
        with self.changed:
            document["metadata"].setdefault("uid", str(uuid.uuid4()))
            self.objects[document["kind"], namespace, document["metadata"]["name"]] = document
            self.changed.notify_all()
        return document

    def write(self, pod, *lines, end=False):
        """Have a pod print."""
        with self.changed:
            self.logs.setdefault(pod, []).extend([*lines, *([None] if end else [])])
            self.changed.notify_all()

    # --- requests

    def apply(self, kind, namespace, name, query, text):
        document = yaml.safe_load(text)
        if query.get("fieldManager", [""])[0] == "":
            raise Refused(422, "Invalid", "fieldManager is required for apply patch")
        if document.get("kind") != kind or document["metadata"]["name"] != name:
            raise Refused(400, "BadRequest", "the object does not fit the path")
        self._validate(document)
        there = self.get(kind, name, namespace)
        if there is not None and kind == "Job":
            for field in IMMUTABLE:
                if there["spec"].get(field) != document["spec"].get(field):
                    message = f'Job.batch "{name}" is invalid: spec.{field}: Invalid value: field is immutable'
                    raise Refused(422, "Invalid", message)
        document["metadata"]["uid"] = there["metadata"]["uid"] if there else str(uuid.uuid4())
        document["metadata"]["namespace"] = namespace
        if query.get("dryRun") == ["All"]:
            return document
        self.put(document, namespace)
        if there is None:
            self.on_applied(document)
        return document

    def _validate(self, document):
        judged = [document] if document["kind"] in ("Job", "Service", "Pod") else []
        if document["kind"] == "JobSet":
            templates = [each["template"] for each in document["spec"]["replicatedJobs"]]
            judged = [{"apiVersion": "batch/v1", "kind": "Job", **json.loads(json.dumps(each))} for each in templates]
        for each in judged:
            try:
                kubernetes_validate.validate(each, VERSION, strict=True)
            except kubernetes_validate.ValidationError as err:
                field = ".".join(map(str, err.path))
                raise Refused(400, "BadRequest", f"strict decoding error: {field}: {err.message}") from None

    def listed(self, kind, namespace, query):
        wanted = dict(part.split("=") for part in query.get("labelSelector", [""])[0].split(",") if part)
        found = [
            document for (of, place, _), document in sorted(self.objects.items()) if (of, place) == (kind, namespace)
        ]
        items = [each for each in found if wanted.items() <= each["metadata"].get("labels", {}).items()]
        return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def delete(self, kind, namespace, name, body):
        document = self.objects.pop((kind, namespace, name))
        policy = json.loads(body or "{}").get("propagationPolicy")
        if kind == "Job" and policy != BACKGROUND:
            return  # the API's default for Jobs: pods are left as they are
        self.on_deleted(document)


class Handler(BaseHTTPRequestHandler):
    api = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, code, document, content_type="application/json"):
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _serve(self):
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        try:
            self._route([part for part in url.path.split("/") if part], query, body)
        except Refused as err:
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            self._answer(err.code, {**status, "message": err.message, "reason": err.reason, "code": err.code})

    do_GET = do_PATCH = do_DELETE = do_POST = _serve

    def _route(self, parts, query, body):
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespaces, namespace, plural, *more = rest
        kind = self.api.kinds.get((version, plural))
        if namespaces != "namespaces" or kind is None:
            self._answer(404, b"404 page not found\n", "text/plain")
            return
        verb = {"GET": "get" if more else "list", "PATCH": "patch", "DELETE": "delete"}[self.command]
        if verb in self.api.forbidden:
            what = f'{plural} is forbidden: User "ada" cannot {verb} resource "{plural}" in the namespace "{namespace}"'
            raise Refused(403, "Forbidden", what)
        name = more[0] if more else ""
        if verb in ("get", "delete") and self.api.get(kind, name, namespace) is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        if more[1:] == ["log"]:
            self._log(namespace, name, query)
        elif verb == "list":
            self._answer(200, self.api.listed(kind, namespace, query))
        elif verb == "get":
            self._answer(200, self.api.get(kind, name, namespace))
        elif verb == "patch":
            if self.headers.get("Content-Type") != "application/apply-patch+yaml":
                raise Refused(415, "UnsupportedMediaType", "only apply is served")
            self._answer(200, self.api.apply(kind, namespace, name, query, body))
        else:
            # Options of a deletion may come as its body, or in the query.
            policy = query.get("propagationPolicy")
            self.api.delete(kind, namespace, name, json.dumps({"propagationPolicy": policy[0]}) if policy else body)
            self._answer(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _log(self, namespace, pod, query):
        names = [each["name"] for each in self.api.get("Pod", pod, namespace)["spec"]["containers"]]
        if query.get("container", names if len(names) == 1 else [""])[0] not in names:
            raise Refused(
                400, "BadRequest", f"a container name must be specified for pod {pod}, choose one of: {names}"
            )
        lines = self.api.logs.get(pod)
        if lines is None:
            raise Refused(400, "BadRequest", f'container "train" in pod "{pod}" is waiting to start: ContainerCreating')
        if query.get("follow") != ["true"]:
            tail = int(query.get("tailLines", ["1000000"])[0])
            kept = [line for line in lines if line is not None][-tail:] if tail else []
            self._answer(200, "".join(f"{line}\n" for line in kept).encode(), "text/plain")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        done = 0
        while True:
            with self.api.changed:
                while len(lines) == done:
                    self.api.changed.wait(60)
                new = lines[done:]
            done += len(new)
            for line in new:
                if line is None:
                    return
                self.wfile.write(f"{line}\n".encode())
            self.wfile.flush()
