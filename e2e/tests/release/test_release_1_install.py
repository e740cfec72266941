"""The lines of README and docs/install.md on a cluster as kind makes it, with chart, images and plugin of a release.

Each block of the pages runs byte for byte (`sos_e2e.pages`); the tests set the variables of the blocks of values, as a reader does. The
order is that of a reader who tries the README first, removes SOS, and then installs it in the ways of the installation guide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from published import RELEASE, Published
from sos_e2e import pages
from sos_e2e.environment import cables, cni
from sos_e2e.environment.cables import SLOW, Cable
from sos_e2e.observation import workload
from sos_e2e.reader import Reader
from sos_e2e.run import CommandError, run, say, wait_for
from sos_e2e.settings import Settings
from stock_cluster import Stock, created

FIRST_BYTE_S = 180.0
"""Time limit from the first line of an installation to the first accelerated byte, with images in the registry."""
LINES_S = 600
PAGE = "docs/install.md"
WAN = Cable(a=("west", "far"), b=("east", "far"), wan=SLOW)
TRIES = 4
"""The service of examples/02-overlay leaves a tenth of the connections plain, for comparison: `helm test` then finds its own plain."""


@pytest.fixture(scope="module")
def stock(config: Settings, built: dict[str, str], published: Published) -> Iterator[Stock]:
    with created(config, published, built["e2e-host"]) as found:
        yield found


def uninstall(stock: Stock, reader: Reader, *, with_crds: bool = False) -> None:
    """Remove SOS by the rows of the page's table."""
    reader.run(pages.command(PAGE, "everything"), timeout=LINES_S)
    wait_for("the release's pods gone", lambda: not stock.kube.items("pods", "-n", workload.RELEASE_NAMESPACE), 120)
    if with_crds:
        reader.run(pages.command(PAGE, "your SOS objects, too"), timeout=LINES_S)
        assert not stock.kube.items("crd", "-l", "app.kubernetes.io/part-of=sos")


def test_the_blocks_of_values_name_the_variables_that_the_suite_sets(stock: Stock) -> None:
    assert pages.variables(pages.block("readme-values")) == set(stock.reader().values)
    assert pages.variables(pages.block("install-values")) == {*stock.reader().values, "NODE_C", "MIRROR"}


def test_lines_of_the_readme_accelerate_within_three_minutes(stock: Stock, published: Published) -> None:
    began = time.monotonic()
    said = stock.reader().run(pages.block("readme-install"), timeout=LINES_S)
    lines = time.monotonic() - began
    wait_for("an accelerated download", stock.is_accelerated, 120)
    took = time.monotonic() - began
    say(said)
    say(f"README: first accelerated byte {took:.0f} s after the first line of the installation, {took - lines:.0f} s after the last one")
    assert took < FIRST_BYTE_S
    used = stock.images()
    assert {published.images["operator"], published.images["agent"]} <= used <= set(published.images.values())


def test_the_plugin_is_one_file_that_a_reader_copies(stock: Stock, published: Published, tmp_path: Path) -> None:
    """The home folder is empty, so no other plugin and no installed package helps."""
    programs = tmp_path / ".local" / "bin"
    reader = published.reader(str(stock.settings.kubeconfig), programs, home=tmp_path)
    said = reader.run(pages.block("readme-plugin"), timeout=LINES_S)
    say(said)
    assert [path.name for path in programs.iterdir()] == ["kubectl-sos"]
    assert (programs / "kubectl-sos").read_bytes() == (RELEASE / "kubectl-sos").read_bytes()
    version = published.images["operator"].rpartition(":")[2]
    assert version in said and said.splitlines()[-1].startswith("ready:")


def test_what_the_readme_installed_is_removed(stock: Stock) -> None:
    uninstall(stock, stock.reader(), with_crds=True)


def test_a_mirror_serves_all_images_of_the_release(stock: Stock, published: Published) -> None:
    mirror = f"{published.registry.address}/mirror"
    reader = published.reader(str(stock.settings.kubeconfig), folder=RELEASE, MIRROR=mirror)
    reader.run(pages.block("install-mirror"), timeout=LINES_S)
    wait_for("the controller", lambda: f"{mirror}/sos-controller:" in " ".join(stock.images()), 60)
    assert all(image.startswith(f"{mirror}/sos-") for image in stock.images()), stock.images()
    uninstall(stock, reader, with_crds=True)


def test_crds_may_be_installed_apart_from_the_chart(stock: Stock, published: Published) -> None:
    reader = published.reader(str(stock.settings.kubeconfig), folder=RELEASE)
    reader.run(pages.block("install-crds"), timeout=LINES_S)
    stock.kube.wait_condition("soscontroller/default", "Ready", timeout=120)
    assert "kind: CustomResourceDefinition" not in stock.kube.helm("get", "manifest", "sos", "--namespace", workload.RELEASE_NAMESPACE)
    uninstall(stock, reader, with_crds=True)


@pytest.fixture(scope="module")
def overlay(stock: Stock, config: Settings) -> Iterator[Reader]:
    """Multus and ovs-cni, a WAN link between the nodes, then the lines that install SOS with an overlay."""
    nodes = {side.name: side.worker for side in (stock.west, stock.east)}
    if config.load_cni_images:
        these = (config.multus_image, config.ovs_cni_image)
        run("kind", "load", "docker-image", "--name", config.cluster, *these, timeout=600)
    stock.kube.apply(*cni.manifests(config))
    for name in ("multus", "ovs-cni"):
        stock.kube.ctl("-n", "kube-system", "rollout", "status", f"daemonset/{name}", "--timeout=120s", timeout=150)
    with cables.plugged(config, nodes, [WAN]):
        cables.route(WAN, nodes)
        reader = stock.reader(NODE_C=stock.control_plane)
        stock.kube.ctl("label", "nodes", "--all", "sos.network/site-")
        reader.run(pages.block("install"), timeout=LINES_S)
        reader.run(pages.block("install-overlay"), timeout=LINES_S)
        yield reader
        uninstall(stock, reader, with_crds=True)


def test_an_overlay_needs_only_the_lines_of_the_page(stock: Stock, overlay: Reader) -> None:
    assert stock.kube.wait_ready(timeout=180) == {"soscontrollers", "sossites", "sosagents", "sosservices"}
    say("\n" + stock.kube.overview())


def verified(stock: Stock, overlay: Reader) -> str:
    """Run the lines that verify an installation, again if the test's connection was among the tenth that stays plain."""
    for _ in range(TRIES - 1):
        try:
            return overlay.run(pages.block("install-verify"), timeout=LINES_S)
        except CommandError:
            log = stock.kube.ctl("-n", workload.RELEASE_NAMESPACE, "logs", "job/sos-test", check=False)
            say(log)
            if "was not accelerated" not in log:
                raise
    return overlay.run(pages.block("install-verify"), timeout=LINES_S)


def test_the_lines_that_verify_an_installation_transfer_data(stock: Stock, overlay: Reader) -> None:
    said = verified(stock, overlay)
    say(said)
    assert said.splitlines()[-1] == "passed"


def test_the_openflow_port_becomes_reachable_from_outside(stock: Stock, overlay: Reader) -> None:
    said = overlay.run(pages.block("install-openflow-port"), timeout=LINES_S)
    assert "NodePort" in said, said


def test_tls_is_required_by_the_lines_of_the_page(stock: Stock, overlay: Reader) -> None:
    said = overlay.run(pages.block("install-openflow-tls"), timeout=LINES_S)
    assert "tls: Required" in said, said
    stock.kube.wait_ready(timeout=120)
