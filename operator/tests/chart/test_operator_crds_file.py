"""Single file of all CustomResourceDefinitions, for installation without the chart; it equals the chart's CRDs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, Kube, kube_apiserver
from operator_plugin import sos
from operator_run import NAMESPACE, OWN_KINDS, eventually, helm, render

PART_OF = "app.kubernetes.io/part-of=sos"
BARE = ("--set", "crds.enabled=false")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, created by the make target of releases."""
    out = tmp_path_factory.mktemp("crds")
    subprocess.run(["make", "-s", "-C", str(ROOT), "crds", f"OUT={out}"], check=True, capture_output=True, timeout=60)
    return out / "sos.crds.yaml"


def spec_of(crd: dict[str, Any]) -> tuple[str, Any, Any]:
    return crd["metadata"]["name"], crd["metadata"]["labels"], crd["spec"]


def test_the_file_equals_the_crds_of_the_chart(file: Path) -> None:
    """The chart's keep annotation is left out, because it has no meaning without helm."""
    chart = sorted((o for o in render() if o["kind"] == "CustomResourceDefinition"), key=lambda o: str(o["metadata"]["name"]))
    found = list(yaml.safe_load_all(file.read_text()))
    assert [spec_of(crd) for crd in found] == [spec_of(crd) for crd in chart]
    assert all("annotations" not in crd["metadata"] for crd in found)
    assert file.stat().st_mode & 0o777 == 0o644


def test_the_file_serves_every_kind_without_the_crds_of_the_chart(file: Path) -> None:
    with kube_apiserver() as kube:
        kube.kubectl("apply", "--server-side", "-f", str(file))
        kube.kubectl("wait", "--for=condition=Established", "crd", "-l", PART_OF, "--timeout=30s")
        eventually("the kinds are served", lambda: all(kube.items(kind, "-A") == [] for kind in OWN_KINDS))
        helm(kube, "install", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE, "--create-namespace", *BARE)
        kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites" / "sites.yaml"))
        assert {site["metadata"]["name"] for site in kube.items("sossites")} >= {"west", "east"}
        helm(kube, "uninstall", "sos", "-n", NAMESPACE, "--no-hooks")
        assert len(kube.items("crd", "-l", PART_OF)) == len(OWN_KINDS), "the release removes only its own objects"
        kube.kubectl("delete", "crd", "-l", PART_OF)
        assert kube.items("crd", "-l", PART_OF) == []
        without = sos(kube, "status")
        assert without.returncode == 2 and "resource type 'soscontrollers'" in without.stderr and "SOS is not installed" in without.stderr


def test_the_file_adopts_crds_of_a_release(installed: Kube, file: Path) -> None:
    """The file adopts, without a conflict, the CRDs that remain after an upgrade to crds.enabled=false."""
    before = {crd["metadata"]["name"]: crd["metadata"]["uid"] for crd in installed.items("crd", "-l", PART_OF)}
    chart = ("sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE)
    helm(installed, "upgrade", *chart, *BARE)
    installed.kubectl("apply", "--server-side", "-f", str(file))
    assert {crd["metadata"]["name"]: crd["metadata"]["uid"] for crd in installed.items("crd", "-l", PART_OF)} == before
    helm(installed, "upgrade", *chart)


def test_a_crd_without_the_label_is_refused(tmp_path: Path) -> None:
    for part in ("scripts/crds.sh", "charts/sos/Chart.yaml", "crds/soslinks.sos.network.yaml"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).write_text((ROOT / part).read_text().replace("    app.kubernetes.io/part-of: sos\n", ""))
    target = tmp_path / "out" / "all.yaml"
    done = subprocess.run(["bash", str(tmp_path / "scripts" / "crds.sh"), str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "soslinks.sos.network.yaml has no label" in done.stderr
    assert list(target.parent.iterdir()) == []
