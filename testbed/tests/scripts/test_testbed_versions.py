"""Kubernetes versions: those of the nightly workflow, of the chart, and of the pages agree."""

import json
import re

import yaml
from testbed_scripts import ROOT

NODE = re.compile(r"kindest/node:v(\d+\.\d+)\.\d+@sha256:[0-9a-f]{64}")


def nightly() -> list[dict[str, str]]:
    """Variants of the short suite in the nightly workflow."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/nightly.yaml").read_text(encoding="utf-8"))["jobs"]
    variants: list[dict[str, str]] = jobs["versions"]["strategy"]["matrix"]["include"]
    return variants


def minors() -> list[str]:
    """Minor versions of these variants, oldest first."""
    found = {match[1] for each in nightly() if (match := NODE.fullmatch(each["node"]))}
    return sorted(found, key=lambda minor: int(minor.split(".")[1]))


def test_the_nightly_workflow_runs_three_versions_from_the_oldest_that_the_chart_accepts() -> None:
    assert len(minors()) == 3
    chart = yaml.safe_load((ROOT / "charts/sos/Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={minors()[0]}.0-0"
    for each in nightly():
        assert NODE.fullmatch(each["node"]), f"{each['name']}: pin the node image by digest"
        assert each["name"] == each.get("cni", NODE.fullmatch(each["node"])[1]), "the name of an artifact says what ran"


def test_the_nightly_workflow_installs_the_kind_of_the_other_suites() -> None:
    workflow = (ROOT / ".github/workflows/nightly.yaml").read_text(encoding="utf-8")
    tools = (ROOT / "scripts/kube-tools.sh").read_text(encoding="utf-8")
    assert re.findall(r"sigs\.k8s\.io/kind@(\S+)", workflow) == re.findall(r"^readonly KIND_VERSION=(\S+)", tools, re.MULTILINE)


def test_the_installation_guide_names_the_versions_and_the_network_plugin() -> None:
    requirements = (ROOT / "docs/install.md").read_text(encoding="utf-8").partition("## Requirements")[2].partition("\n## ")[0]
    *first, last = minors()
    assert f"Kubernetes {minors()[0]} or newer" in requirements
    assert f"on Kubernetes {', '.join(first)} and {last}" in requirements
    for plugin in {each["cni"] for each in nightly() if "cni" in each}:
        assert f"with {plugin}" in requirements


def test_the_support_matrix_has_a_passed_short_suite_of_every_nightly_variant() -> None:
    rows = json.loads((ROOT / "docs/figures/support.json").read_text(encoding="utf-8"))["rows"]
    passed = [row["versions"] for row in rows if (row["what"], row["result"]) == ("short end-to-end suite", "passed")]
    for minor in minors():
        assert any(versions["kubernetes"].startswith(f"v{minor}.") for versions in passed), minor
    for plugin in {each["cni"] for each in nightly() if "cni" in each}:
        assert any(versions["network plugin"].startswith(plugin) for versions in passed), plugin
