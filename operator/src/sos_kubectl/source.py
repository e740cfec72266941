"""Where answers come from: the API server by way of kubectl (contexts, credentials and proxies are kubectl's), or a controller's URL."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from sos_compile import naming

Json = dict[str, Any]

PREFIX = "sos"
API_PORT = 8080
KINDS = "soscontrollers,sossites,sosagents,sosservices,soslinks"
OPERATORS_CHILDREN = "app.kubernetes.io/managed-by=sos-operator"
TIMEOUT_S = 10.0
ANSWER_MAX_BYTES = 64 * 1024 * 1024


class SourceError(Exception):
    """Nobody answered, or not with what was asked for; the text says who and what to do."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """An API server as kubectl reaches it. `options` go before every command: context, kubeconfig."""

    options: tuple[str, ...] = ()

    def objects(self) -> list[Json]:
        """All SOS objects of the cluster."""
        found: list[Json] = self._json("get", KINDS, "--all-namespaces", "-o", "json")["items"]
        return found

    def controller_path(self, name: str) -> str:
        """The path on the API server that leads to a controller's own API."""
        wanted = naming.controller(PREFIX, name)
        services = self._json("get", "services", "--all-namespaces", "-l", OPERATORS_CHILDREN, "-o", "json")["items"]
        namespaces = [s["metadata"]["namespace"] for s in services if s["metadata"]["name"] == wanted]
        if not namespaces:
            raise SourceError(f"no Service {wanted}: is there a soscontroller/{name}? One of type External has a URL of its own: use --url")
        return f"/api/v1/namespaces/{namespaces[0]}/services/http:{wanted}:{API_PORT}/proxy"

    def raw(self, path: str) -> Json:
        """A JSON document of the API server."""
        return self._json("get", "--raw", path)

    @contextmanager
    def stream(self, path: str) -> Iterator[IO[str]]:
        """Lines as they come."""
        with subprocess.Popen(self._argv(("get", "--raw", path)), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None  # noqa: S101 - PIPE
            try:
                yield process.stdout
            finally:
                process.terminate()

    def _argv(self, command: Sequence[str]) -> list[str]:
        return ["kubectl", *self.options, *command]

    def _json(self, *command: str) -> Json:
        try:
            done = subprocess.run(self._argv(command), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except FileNotFoundError:
            raise SourceError("there is no kubectl here; with --url URL a controller is asked directly") from None
        except subprocess.TimeoutExpired:
            raise SourceError(f"kubectl {' '.join(command[:2])}: no answer within {TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise SourceError(_kubectls_words(done.stderr))
        return _parsed(done.stdout, "kubectl")


def _kubectls_words(stderr: str) -> str:
    words = stderr.strip() or "kubectl failed and does not say why"
    if "the server doesn't have a resource type" in words:
        return f"{words}\nSOS is not installed in this cluster: helm install sos"
    return words


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller's API (spec/northbound.md), by a URL or through the API server."""

    url: str = ""
    kubectl: Kubectl | None = None
    path: str = ""

    def get(self, what: str) -> Json:
        """GET a document, `/v1/status` say."""
        if self.kubectl is not None:
            return self.kubectl.raw(self.path + what)
        with self._open(what) as answer:
            return _parsed(answer.read(ANSWER_MAX_BYTES).decode(errors="replace"), self.url)

    @contextmanager
    def events(self) -> Iterator[Iterator[Json]]:
        """Changes as they happen, one object each."""
        if self.kubectl is not None:
            with self.kubectl.stream(self.path + "/v1/events") as lines:
                yield (json.loads(line) for line in lines)
        else:
            with self._open("/v1/events", timeout=None) as answer:
                yield (json.loads(line) for line in answer)

    def _open(self, what: str, timeout: float | None = TIMEOUT_S) -> Any:
        if not self.url.startswith(("http://", "https://")):
            raise SourceError(f"--url {self.url}: it begins with http:// or https://")
        try:
            return urllib.request.urlopen(self.url.rstrip("/") + what, timeout=timeout)  # noqa: S310 - checked above
        except urllib.error.HTTPError as error:
            raise SourceError(f"{self.url}{what}: {error.code} {error.reason}") from None
        except OSError as error:
            raise SourceError(f"{self.url}: {getattr(error, 'reason', error)}") from None


def _parsed(text: str, who: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        raise SourceError(f"{who} did not answer with JSON: {text[:200]!r}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{who} did not answer with an object: {text[:200]!r}")
    return found
