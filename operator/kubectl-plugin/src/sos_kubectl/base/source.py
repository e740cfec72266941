"""Sources of answers: the API server through kubectl (with kubectl's contexts, credentials and proxies), or a controller's URL."""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import names
from sos_kubectl.base.labels import OPERATORS_CHILDREN, PART_OF
from sos_kubectl.base.signals import undisturbed

Json = dict[str, Any]

API_PORT = 8080
KINDS = ("soscontrollers", "sossites", "sosagents", "sosservices", "soslinks", "sospeers")
API_VERSION = "sos.network/v1alpha1"
TIMEOUT_S = 10.0
ANSWER_MAX_BYTES = 64 * 1024 * 1024
NOT_SERVED = "the server could not find the requested resource"
"""kubectl's message for the path of an undefined kind."""
NOT_INSTALLED = "SOS is not installed in this cluster: helm install sos"


class SourceError(Exception):
    """Missing or invalid answer; the text names the source and the remedy."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """An API server, accessed through kubectl. `options` go before every command: context, kubeconfig."""

    options: tuple[str, ...] = ()

    def objects(self) -> list[Json]:
        """All SOS objects of the cluster.

        Read raw from the API server, all kinds in parallel: kubectl would parse, sort and print every object, which for a thousand objects
        takes longer than all other work together.
        """
        with ThreadPoolExecutor(len(KINDS)) as pool:
            return [obj for found in pool.map(self._all, KINDS) for obj in found]

    def _all(self, plural: str) -> list[Json]:
        try:
            found: list[Json] = _parsed(self.raw(f"/apis/{API_VERSION}/{plural}"), "the API server")["items"]
        except SourceError as error:
            if NOT_SERVED not in str(error):
                raise
            raise SourceError(f"the server doesn't have a resource type {plural!r}\n{NOT_INSTALLED}") from None
        for obj in found:
            obj["metadata"].pop("managedFields", None)
        return found

    def controller_path(self, name: str) -> str:
        """Return the path of a controller's API through the API server."""
        wanted = names.controller(name)
        services = self.json("get", "services", "--all-namespaces", "-l", OPERATORS_CHILDREN, "-o", "json")["items"]
        namespaces = sorted(s["metadata"]["namespace"] for s in services if s["metadata"]["name"] == wanted)
        if not namespaces:
            raise SourceError(f"no Service {wanted}: is there a soscontroller/{name}? One of type External has a URL of its own: use --url")
        if len(namespaces) > 1:
            raise SourceError(f"Services {wanted} in {', '.join(namespaces)}: which is the operator's namespace? use --namespace")
        return self.controller_in(namespaces[0], name)

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces of operators."""
        found = self.json("get", "deployments", "--all-namespaces", "-l", f"{PART_OF},app.kubernetes.io/component=operator", "-o", "json")
        return tuple(sorted({item["metadata"]["namespace"] for item in found["items"]}))

    def controller_in(self, namespace: str, name: str) -> str:
        """Return the same path as `controller_path`, if the operator's namespace is known. Of two replicas, the path of the active one."""
        first, second = (_proxied(namespace, names.controller(name, replica)) for replica in (0, 1))
        if not self.run("get", "service", names.controller(name, 1), "-n", namespace, "--ignore-not-found", "-o", "name").strip():
            return first
        return second if self._is_active(second) else first

    def _is_active(self, path: str) -> bool:
        try:
            said = _parsed(self.raw(f"{path}/v1/status"), "the controller").get("controller")
        except SourceError:
            return False
        return isinstance(said, dict) and said.get("active") is True

    def raw(self, path: str) -> str:
        """Return the API server's answer to a GET."""
        return self.run("get", "--raw", path)

    def stream(self, path: str) -> Iterator[str]:
        """Yield lines as they arrive. Raises SourceError when the stream ends by itself."""
        return _stream(self.argv("get", "--raw", path))

    def argv(self, *command: str) -> tuple[str, ...]:
        """The command line."""
        return ("kubectl", *self.options, *command)

    def json(self, *command: str, timeout_s: float = TIMEOUT_S) -> Json:
        """Return a command's output, parsed as a JSON object."""
        return _parsed(self.run(*command, timeout_s=timeout_s), "kubectl")

    def named(self, kind: str, wanted: list[str]) -> list[Json]:
        """The existing objects of these names. kubectl prints nothing for no object, one object for one name, and a list for several."""
        said = self.run("get", kind, *wanted, "--ignore-not-found", "-o", "json")
        found = _parsed(said, "kubectl") if said.strip() else {"items": []}
        return list(found.get("items", [found]))

    def run(self, *command: str, stdin: str = "", timeout_s: float = TIMEOUT_S, alone: bool = False) -> str:
        """Return a command's output; raise SourceError with kubectl's message if the command fails. `alone`: Ctrl-C at the terminal does
        not reach the command."""
        try:
            done = subprocess.run(
                self.argv(*command),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                start_new_session=alone,
            )
        except FileNotFoundError:
            raise SourceError("kubectl is not installed here; --url URL queries a controller directly") from None
        except subprocess.TimeoutExpired:
            raise SourceError(f"kubectl {' '.join(command[:2])}: no answer within {timeout_s:.0f} s") from None
        if done.returncode:
            raise SourceError(_kubectls_words(done.stderr))
        return done.stdout

    def tidy(self, *command: str, timeout_s: float = TIMEOUT_S) -> str:
        """Delete an object that this program created, ignoring signals; return "" or the reason why the object still exists."""
        with undisturbed():
            try:
                self.run(*command, timeout_s=timeout_s, alone=True)
            except SourceError as error:
                return str(error)
        return ""


def _kubectls_words(stderr: str) -> str:
    words = stderr.strip() or "kubectl failed without a message"
    if "the server doesn't have a resource type" in words:
        return f"{words}\n{NOT_INSTALLED}"
    return words


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller's API (spec/northbound.md), by a URL or through the API server."""

    url: str = ""
    kubectl: Kubectl | None = None
    path: str = ""
    inside: tuple[str, ...] = ()
    """Command prefix that enters the network namespace of a lab's controller."""

    def get(self, what: str) -> Json:
        """GET a document, for example `/v1/status`."""
        return _parsed(self.text(what), self.url or "the controller")

    def text(self, what: str) -> str:
        """GET a text, for example `/metrics`."""
        if self.kubectl is not None:
            return self.kubectl.raw(self.path + what)
        if self.inside:
            return self._curl(what)
        with self._open(what, TIMEOUT_S) as answer:
            return str(answer.read(ANSWER_MAX_BYTES).decode(errors="replace"))

    def events(self) -> Iterator[Json]:
        """Yield changes as they happen, one object per change; empty lines are keepalives."""
        if self.kubectl is not None:
            lines = self.kubectl.stream(self.path + "/v1/events")
        elif self.inside:
            lines = _stream((*self.inside, "curl", "-sSfN", f"{self.url}/v1/events"))
        else:
            lines = self._lines("/v1/events")
        return (_parsed(line, "the controller") for line in lines if line.strip())

    def _curl(self, what: str) -> str:
        argv = (*self.inside, "curl", "-sSf", "-m", f"{TIMEOUT_S:.0f}", f"{self.url}{what}")
        try:
            done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=2 * TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"{self.url}: {error}") from None
        if done.returncode:
            raise SourceError(f"{self.url}{what}: {done.stderr.strip() or f'curl ended with {done.returncode}'}")
        return done.stdout

    def _lines(self, what: str) -> Iterator[str]:
        with self._open(what, None) as answer:
            for line in answer:
                yield line.decode(errors="replace")
        raise SourceError(f"{self.url}: the controller ended the stream")

    @contextmanager
    def _open(self, what: str, timeout: float | None) -> Iterator[Any]:
        """Open a URL and provide the answer. Any failure before the end of reading raises a SourceError that names the URL."""
        if not self.url.startswith(("http://", "https://")):
            raise SourceError(f"--url {self.url}: it begins with http:// or https://")
        try:
            with urllib.request.urlopen(self.url.rstrip("/") + what, timeout=timeout) as answer:  # noqa: S310 - checked above
                yield answer
        except urllib.error.HTTPError as error:
            raise SourceError(f"{self.url}{what}: {error.code} {error.reason}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise SourceError(f"{self.url}: {getattr(error, 'reason', None) or error or type(error).__name__}") from None


def _stream(argv: Sequence[str]) -> Iterator[str]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101 - PIPE
        try:
            yield from process.stdout
            raise SourceError(process.stderr.read().strip() or "the controller ended the stream")
        finally:
            process.terminate()


def _parsed(text: str, who: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        raise SourceError(f"{who} did not answer with JSON: {text[:200]!r}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{who} did not answer with an object: {text[:200]!r}")
    return found


def _proxied(namespace: str, service: str) -> str:
    return f"/api/v1/namespaces/{namespace}/services/http:{service}:{API_PORT}/proxy"
