"""Select the checker of a command by its program."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shell_blocks import clicks, helm, helped, kubectl, makefile, paths
from shell_blocks.shell import is_placeholder

WRAPPERS = ("sudo", "time", "nice", "exec", "command")
EXTERNAL = frozenset(
    (
        *("cat", "cd", "chmod", "cp", "curl", "date", "echo", "export", "grep", "install", "jq", "ln", "mkdir", "ping", "printf", "read"),
        *("rm", "scp", "sed", "sha256sum", "ssh", "systemctl", "tar", "test", "true", "base64", "source", "modprobe", "apt-get", "git"),
        *("docker", "podman", "kind", "cosign", "go", "cargo", "krew", "pip", "uv", "pytest", "python", "ruff"),
        *("ip", "ss", "nft", "ovs-vsctl", "ovs-ofctl", "ovs-appctl", "ovs-dpctl", "iperf3", "tc", "wrk", "haproxy", "crane", "skopeo"),
    )
)
"""Programs of others, which are not checked. An unknown program is an error: it may be a misspelt one."""
BINARIES = ("sos-controller",)
"""Programs of this project whose options are read from their help."""


@dataclass(frozen=True)
class Checker:
    """Checks commands against a repository."""

    top: Path

    def problems(self, words: Sequence[str], *, mention: bool = False) -> Iterator[str]:
        """Report everything that is wrong with a command. A mention, in the text of a page, may leave arguments out."""
        yield from paths.missing(words, self.files)
        yield from paths.unknown_keys(words, self.keys)
        words = list(words)
        while words and (words[0] in WRAPPERS or (words[0] == "env" and len(words) > 1)):
            words = words[1:]
            while words and re.match(r"^(?:-\w+$|\w+=)", words[0]):
                words = words[1:]
        if words:
            yield from self._program(words[0], words[1:], mention=mention)

    def _program(self, program: str, words: list[str], *, mention: bool) -> Iterator[str]:
        name = program.removeprefix(".venv/bin/")
        if name == "kubectl" and kubectl.verb_of(words) == "sos":
            before, rest = words[: words.index("sos")], words[words.index("sos") + 1 :]
            if before:
                yield "kubectl sos: options of kubectl before `sos` are not passed to the plugin: write them behind the command"
            yield from self._click("plugin", rest, mention=mention)
        elif name == "kubectl":
            yield from kubectl.problems(words, self.kinds, mention=mention)
        elif name == "kubectl-sos":
            yield from self._click("plugin", words, mention=mention)
        elif name == "./lab":
            yield from self._click("lab", words, mention=mention)
        elif name == "helm":
            yield from helm.problems(words, self.schemas, mention=mention)
        elif name == "make":
            yield from makefile.problems(words, (self.top / "Makefile").read_text(encoding="utf-8"))
        elif re.fullmatch(r"python3?(\.\d+)?", name):
            yield from self._python(words)
        elif name in BINARIES:
            yield from helped.problems((str(Path(sys.executable).with_name(name)),), words, self.top)
        elif "/" in name and name.removeprefix("./") in self.files:
            yield from self._file(name, words)
        elif name not in EXTERNAL and "/target/" not in name and not is_placeholder(name):
            yield f"{name}: unknown program (a program of others belongs into EXTERNAL of scripts/shell_blocks/programs.py)"
        if name in {"kubectl", "./lab"} and "--" in words and words[-1] != "--" and not mention:
            yield from self.problems(words[words.index("--") + 1 :])

    def _click(self, program: str, words: list[str], *, mention: bool) -> Iterator[str]:
        command, name = self.clicks[program]
        if found := clicks.problem(command, words, name, mention=mention):
            yield found

    def _python(self, words: list[str]) -> Iterator[str]:
        """`python -m MODULE` and `python FILE` of this repository."""
        if words[:1] == ["-m"] and len(words) > 1 and words[1] == "sos_testbed":
            yield from self._click("lab", words[2:], mention=False)
        elif words[:1] == ["-m"] and len(words) > 1 and words[1].startswith("sos_"):
            yield from helped.problems((sys.executable, "-m", words[1]), words[2:], self.top)
        elif words and words[0].endswith(".py"):
            yield from self._file(words[0], words[1:])

    def _file(self, name: str, words: list[str]) -> Iterator[str]:
        """A program of this repository."""
        if name not in self.files:
            if not is_placeholder(name):
                yield f"{name}: there is no such file in the repository"
        elif any(word.startswith("-") for word in words):
            argv = (sys.executable, name) if name.endswith(".py") else (f"./{name}",)
            yield from helped.problems(argv, words, self.top)

    @cached_property
    def clicks(self) -> dict[str, tuple[Any, str]]:
        """Parsers of our commands, with the name in messages."""
        import typer.main
        from sos_kubectl.__main__ import app as plugin
        from sos_testbed.cli import app as lab

        return {"plugin": (plugin, "kubectl sos"), "lab": (typer.main.get_command(lab), "./lab")}

    @cached_property
    def files(self) -> frozenset[str]:
        """Paths of the repository's files, new ones included."""
        command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
        return frozenset(subprocess.run(command, cwd=self.top, capture_output=True, text=True, check=True).stdout.splitlines())

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of labels and annotations in code and manifests, without tests."""
        named = (name for name in self.files if name.endswith((".py", ".rs", ".yaml", ".tpl")) and "/tests/" not in name)
        texts = ((self.top / name).read_text(encoding="utf-8", errors="replace") for name in named if (self.top / name).is_file())
        return frozenset(found[0] for text in texts for found in paths.KEY.finditer(text))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Names of kinds for kubectl."""
        return kubectl.kinds(self.top / "crds")

    @cached_property
    def schemas(self) -> helm.Schemas:
        """Schemas of the chart's values."""
        return helm.read_schemas(self.top)
