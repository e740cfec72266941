"""Lines of README, quick start and installation guide that SUITE=release runs; needs no cluster (`closed_ports`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from closed_ports import REGISTRY, kubeconfig, programs, source_tree
from sos_e2e import pages
from sos_e2e.pages import PageError
from sos_e2e.reader import Reader, environment
from sos_e2e.run import CommandError, run
from sos_e2e.settings import ROOT

RELEASE = "out/release"
IN_THE_RELEASE = ("install-mirror", "install-crds")
BLOCKS = {
    "README.md": ("readme-values", "readme-publish", "readme-install", "readme-plugin"),
    "docs/quick-start.md": ("quick-start", "quick-start-install", "quick-start-next", "quick-start-end"),
    "docs/install.md": (
        *(
            "install-values",
            "install",
            "install-overlay",
            "install-mirror",
            "install-crds",
            "install-openflow-port",
            "install-openflow-tls",
        ),
        "install-verify",
    ),
}
VALUES = {"REGISTRY": REGISTRY, "MIRROR": "localhost:1/mirror", "NODE_A": "worker", "NODE_B": "worker2", "NODE_C": "control-plane"}
NOT_RUN = ("cosign ", "@sha256:...", "ovs-vsctl ")
"""Blocks that need a published release, digests of the reader, or a switch outside the cluster."""
ROWS = ("everything", "your SOS objects, too")
TIMEOUT_S = 120


@dataclass(frozen=True)
class Desk:
    """A reader's place without a cluster: a source tree with the files of a release, and programs that check their lines."""

    tree: Path
    shims: Path
    home: Path

    def run(self, name: str, of: Mapping[str, str] | None = None) -> str:
        block = pages.command("docs/install.md", name, of) if name in ROWS else pages.block(name, of)
        own = environment(self.home, [self.shims], HOME=str(self.home), KUBECONFIG=str(self.home / "kubeconfig"))
        folder = self.tree / RELEASE if name in IN_THE_RELEASE else self.tree
        return Reader(folder=folder, environment=own, values=VALUES).run(block, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = tmp_path_factory.mktemp("desk")
    tree, shims, home = folder / "tree", folder / "programs", folder / "home"
    source_tree(tree)
    build = (sys.executable, ROOT / "scripts" / "release.py", "--registry", REGISTRY, "--out", tree / RELEASE)
    run(*build)
    tools = [Path(run(ROOT / "scripts" / "kube-tools.sh", "--where", name).strip()) for name in ("kubectl", "helm")]
    programs(shims, [*tools, Path(shutil.which("make") or ""), tree / RELEASE / "kubectl-sos"])
    home.mkdir()
    kubeconfig(home / "kubeconfig", "a", "b")
    for context in ("a", "b"):
        kubeconfig(tree / "out" / "e2e" / context / "kubeconfig", context)
    return Desk(tree, shims, home)


def test_all_blocks_of_commands_are_run_or_named_here() -> None:
    for page, text in pages.texts().items():
        found = pages.blocks({page: text})
        assert set(BLOCKS[page]) <= {block.name for block in found}
        others = [block for block in found if not block.name]
        assert [block for block in others if not any(word in block.text for word in NOT_RUN)] == []


def test_values_are_assignments_only() -> None:
    assert pages.variables(pages.block("readme-values")) == {"REGISTRY", "NODE_A", "NODE_B"}
    assert pages.variables(pages.block("install-values")) == set(VALUES)
    with pytest.raises(PageError, match="reader's values only"):
        pages.variables(pages.block("readme-install"))


@pytest.mark.parametrize("name", [name for names in BLOCKS.values() for name in names] + list(ROWS))
def test_programs_accept_their_lines(desk: Desk, name: str) -> None:
    (desk.shims / "images").unlink(missing_ok=True)
    desk.run(name)


@pytest.mark.parametrize("name", [name for names in BLOCKS.values() for name in names])
def test_no_failure_hides_behind_another_command(name: str) -> None:
    """The shell goes on after the failure of a command before `&&`, unless it is the last one."""
    assert not re.search(r"&&|\|\||; *true", pages.block(name).text)


def test_lines_push_exactly_the_images_of_the_release(desk: Desk) -> None:
    for name, prefix in (("readme-publish", REGISTRY), ("install-mirror", VALUES["MIRROR"])):
        (desk.shims / "images").unlink(missing_ok=True)
        desk.run(name)
        named = {image for image in (desk.shims / "images").read_text().split() if image.startswith(f"{prefix}/")}
        listed = (desk.tree / RELEASE / "images.txt").read_text().replace(REGISTRY, prefix).split()
        assert named == set(listed)


EDITS = [
    ("readme-publish", "docker build", "docker biuld"),
    ("readme-publish", "controller-image/Dockerfile", "controller/Dockerfile"),
    ("readme-publish", "in agent node ovs; do docker build", "in agent nodes ovs; do docker build"),
    ("readme-publish", "for part in operator controller agent", "for part in operator contoller agent"),
    ("readme-publish", "make release", "make relaese"),
    ("readme-publish", "sos-0.1.0.tgz", "sos-0.1.1.tgz"),
    ("readme-publish", "helm push", "helm psuh"),
    ("readme-publish", "$REGISTRY/charts", "$REGISTY/charts"),
    ("readme-install", "helm install", "helm isntall"),
    ("readme-install", "helm install", "hlem install"),
    ("readme-install", "--version 0.1.0", "--version 0.1"),
    ("readme-install", "charts/sos", "chart/sos"),
    ("readme-install", "--namespace sos-system --wait", "--namspace sos-system --wait"),
    ("readme-install", "create namespace", "create namspace"),
    ("readme-install", "label node $NODE_A", "lable node $NODE_A"),
    ("readme-install", "label node $NODE_A", "label node $NODE_D"),
    ("readme-install", "examples/07-pods\n", "examples/70-pods\n"),
    ("readme-install", "get sos -A", "get sos -A --al"),
    ("readme-plugin", "out/release/kubectl-sos", "out/kubectl-sos"),
    ("readme-plugin", "sos status", "sos stauts"),
    ("readme-plugin", "--wait", "--wiat"),
    ("quick-start", "make quick-start", "make quickstart"),
    ("quick-start", "out/e2e/a/kubeconfig", "out/e2e/c/kubeconfig"),
    ("quick-start", "--context a get", "--context c get"),
    ("quick-start", "exec host --", "exec host"),
    ("quick-start-install", "helm --kube-context", "helm --kube-contex"),
    ("quick-start-install", "site-$context.yaml", "sites-$context.yaml"),
    ("quick-start-install", "peer invite b", "peer invit b"),
    ("quick-start-install", "--as a", "--ass a"),
    ("quick-start-install", "--prefix 10.61.0.0/16", "--prefix"),
    ("quick-start-install", "; done", ""),
    ("quick-start-next", "--context a describe", "--contxt a describe"),
    ("quick-start-next", "sosservice.yaml", "sosservices.yaml"),
    ("quick-start-next", "peer list", "peer lists"),
    ("quick-start-end", "try-b", "tyr-b"),
    ("install", "--for=condition=Ready", "--for=conditon=Ready"),
    ("install-overlay", "examples/02-overlay", "examples/2-overlay"),
    ("install-mirror", "images.txt", "image.txt"),
    ("install-mirror", "docker push $MIRROR", "docker push $REGISTRY/mirror"),
    ("install-mirror", "images.registry", "image.registry"),
    ("install-crds", "sos.crds.yaml", "sos.crd.yaml"),
    ("install-crds", "crds.enabled", "crd.enabled"),
    ("install-openflow-port", "defaults.controller.spec", "default.controller.spec"),
    ("install-openflow-tls", "--reuse-values", "--reuse-value"),
    ("install-verify", "overlay-values.yaml", "overlays-values.yaml"),
    ("install-verify", "helm test sos", "helm tests sos"),
    ("everything", "helm uninstall", "helm uninstal"),
]


@pytest.mark.parametrize(("name", "line", "edited"), EDITS)
def test_a_line_that_is_edited_wrongly_fails(desk: Desk, name: str, line: str, edited: str) -> None:
    block = pages.command("docs/install.md", name) if name in ROWS else pages.block(name)
    texts = pages.texts()
    lines = texts[block.page].splitlines(keepends=True)
    at = slice(block.line - 1, block.line - 1 + len(block.text.splitlines()))
    right = "".join(lines[at])
    assert line in right
    lines[at] = [right.replace(line, edited, 1)]
    texts[block.page] = "".join(lines)
    (desk.shims / "images").unlink(missing_ok=True)
    with pytest.raises(CommandError):
        desk.run(name, texts)


@pytest.mark.parametrize("edited", ["", "<!-- run: readme-isntall -->", "<!-- run readme-install -->", "<!-- run: readme-publish -->"])
def test_a_missing_or_renamed_name_fails(edited: str) -> None:
    marker, texts = "<!-- run: readme-install -->", pages.texts()
    assert marker in texts["README.md"]
    texts["README.md"] = texts["README.md"].replace(marker, edited)
    with pytest.raises(PageError):
        for name in BLOCKS["README.md"]:
            pages.block(name, texts)


def test_a_failed_line_is_reported_with_its_place(desk: Desk) -> None:
    texts = pages.texts()
    texts["README.md"] = texts["README.md"].replace("kubectl get sos -A\n", "kubectl gte sos -A\n")
    number = texts["README.md"].splitlines().index("kubectl gte sos -A") + 1
    with pytest.raises(CommandError, match=f"README.md:{number}: exit status 1"):
        desk.run("readme-install", texts)


def test_a_reader_is_stopped_at_the_limit_with_all_processes(desk: Desk, tmp_path: Path) -> None:
    mark = f"{os.getpid()}.75"  # seconds, and recognizable among processes
    block = pages.blocks({"page": f"```sh\nsleep {mark} & sleep {mark}\n```\n"})[0]
    with pytest.raises(CommandError, match="not done after 1 s"):
        Reader(folder=tmp_path, environment=environment(tmp_path)).run(block, timeout=1)
    listed = subprocess.run(["pgrep", "-fx", f"sleep {mark}"], capture_output=True, text=True, check=False)
    assert listed.stdout == ""
