"""A `sos-controller` process for tests, with the Secrets that its pod would mount."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from operator_kube import Kube, free_port, tied
from operator_run import NAMESPACE, eventually


class Controller:
    """A `sos-controller` that can be killed and restarted on the same ports, with the Secrets that its pod would mount."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube, self.folder = kube, folder
        self.port, self.openflow = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mount(self, secret: str, folder: str) -> Path:
        """Write a Secret's files as a kubelet does: replace files atomically, delete files that have left the Secret."""
        target = self.folder / folder
        target.mkdir(exist_ok=True)
        data = self.kube.get("secret", secret, "-n", NAMESPACE)["data"]
        for name, text in data.items():
            (self.folder / "half").write_bytes(base64.b64decode(text))
            (self.folder / "half").rename(target / name)
        for path in target.iterdir():
            if path.name not in data:
                path.unlink()
        return target

    def start(self) -> None:
        keys = self.mount("sos-controllerkeys-default", "keys")
        token = self.mount("sos-controllertoken-default", "token") / "token"
        command = [sys.executable, "-m", "sos_controller", "--keys", str(keys), "--token-file", str(token)]
        command += ["--openflow-listen", f"127.0.0.1:{self.openflow}", "--api-listen", f"127.0.0.1:{self.port}"]
        command += ["--state", str(self.folder / "state")]
        with (self.folder / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(tied(*command), stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        eventually("the controller's API", self.answers, 60)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "controller.log").read_text()[-3000:]
        try:
            return bool(self.get("/v1/status"))
        except OSError:
            return False

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return dict(json.load(answer))

    def admits(self, token: bytes) -> bool:
        """True if the API accepts a token; the document is invalid, so the request changes nothing."""
        said = {"Authorization": f"Bearer {token.decode().strip()}"}
        request = urllib.request.Request(self.url + "/v1/config", b"{}", said, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError as error:
            return error.code != 401
        return True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
