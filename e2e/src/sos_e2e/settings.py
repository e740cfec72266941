"""Settings from the environment: engine, images and tools. Other modules do not read SOS_E2E_* variables."""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NETWORK_PLUGINS = ("kube-router",)
"""Network plugins that the suite can install in place of kind's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run of the suite."""

    cluster: str  # name of the kind cluster; its kube-context is kind-<cluster>
    node_image: str | None  # None: kind's own default
    network_plugin: str | None  # one of NETWORK_PLUGINS; None: kind's own
    multus_image: str
    ovs_cni_image: str
    load_cni_images: bool  # load images that only the local engine has; nodes pull published images themselves
    out: Path  # dumps and logs of this run
    keep: bool  # keep the cluster for inspection
    small: bool  # one node per site, and no third site that joins later
    tag: str  # tag of the images built for this run
    previous: str | None  # commit or tag of the previous version; None: newest release, else sos_e2e.environment.previous_version
    soak_minutes: float  # duration of the soak
    binaries: dict[str, Path] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        """The suite's own kubeconfig; the user's is never read or written."""
        return self.out / "kubeconfig"

    @property
    def context(self) -> str:
        """Name of the only context that the suite uses."""
        return f"kind-{self.cluster}"


def settings(*, keep: bool, small: bool, cluster: str | None) -> Settings:
    """Read the environment: KIND_NODE_IMAGE, MULTUS_IMAGE and OVSCNI_IMAGE name images; DOCKER_HOST is read by the tools themselves."""
    env = os.environ
    out = Path(env.get("SOS_E2E_OUT", ROOT / "out" / "e2e"))
    out.mkdir(parents=True, exist_ok=True)
    return Settings(
        cluster=cluster or f"sos-e2e-{secrets.token_hex(2)}",
        node_image=env.get("KIND_NODE_IMAGE"),
        network_plugin=_network_plugin(env.get("SOS_E2E_CNI", "")),
        multus_image=env.get("MULTUS_IMAGE", "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.0-thick"),
        ovs_cni_image=env.get("OVSCNI_IMAGE", "ghcr.io/k8snetworkplumbingwg/ovs-cni-plugin:v0.39.0"),
        load_cni_images="MULTUS_IMAGE" in env,
        out=out,
        keep=keep,
        small=small,
        tag=env.get("SOS_E2E_TAG", "e2e"),
        previous=env.get("SOS_E2E_PREVIOUS"),
        soak_minutes=float(env.get("SOS_E2E_SOAK_MINUTES", "60")),
    )


def _network_plugin(name: str) -> str | None:
    if name and name not in NETWORK_PLUGINS:
        raise ValueError(f"SOS_E2E_CNI={name}: the suite can install {', '.join(NETWORK_PLUGINS)}")
    return name or None
