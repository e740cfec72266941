"""Everything that can be set from outside, read from the environment once at start. Nobody else reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class SettingsError(ValueError):
    """A variable of the environment is missing or has a value that makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Image references of the pods that the operator starts."""

    controller: str
    agent: str
    node: str
    ovs: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator process."""

    namespace: str
    """The release namespace: every child lives here."""
    images: Images
    deployment: str = "sos-operator"
    """Name of the operator's own Deployment, which `uninstall` stops before it removes anything."""
    kubeconfig: Path | None = None
    """How to reach the API server; none = as the pod's service account."""
    defaults_dir: Path | None = None
    """Folder with the YAML of the default SosController and SosAgent (the chart's ConfigMap); none = no defaults."""
    http_port: int = 8080
    """Port of /healthz, /readyz and /metrics."""
    http_host: str = "0.0.0.0"  # noqa: S104 - probes and scrapers come from outside the pod
    log_level: str = "INFO"
    resync_seconds: float = 60.0
    """Everything is listed anew at least this often, whatever the watches say."""
    site_cleanup_seconds: float = 60.0
    """How long a deleted SosSite may wait for its nodes to take their bridges down."""
    controller_api_override: Mapping[str, str] = field(default_factory=dict)
    """Controller name -> base URL of its API, instead of its Service (for an operator that runs outside the cluster)."""


def _number(env: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise SettingsError(f"{name}: {text!r} is not a number") from None
    if not low <= value <= high:
        raise SettingsError(f"{name}: {text} is outside {low:g} to {high:g}")
    return value


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set")
    return value


def _pairs(env: Mapping[str, str], name: str) -> dict[str, str]:
    pairs = {}
    for item in filter(None, (part.strip() for part in env.get(name, "").split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise SettingsError(f"{name}: {item!r} is not NAME=URL")
        pairs[key] = value.rstrip("/")
    return pairs


def parse_settings(env: Mapping[str, str]) -> Settings:
    """Settings from variables named SOS_*; raises SettingsError that names the variable."""
    level = env.get("SOS_LOG_LEVEL", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise SettingsError(f"SOS_LOG_LEVEL: {level!r} is none of DEBUG, INFO, WARNING, ERROR")
    policy = env.get("SOS_IMAGE_PULL_POLICY", "") or "IfNotPresent"
    if policy not in ("Always", "IfNotPresent", "Never"):
        raise SettingsError(f"SOS_IMAGE_PULL_POLICY: {policy!r} is none of Always, IfNotPresent, Never")
    defaults = env.get("SOS_DEFAULTS_DIR", "")
    kubeconfig = env.get("KUBECONFIG", "")
    return Settings(
        namespace=_required(env, "SOS_NAMESPACE"),
        images=Images(
            controller=_required(env, "SOS_IMAGE_CONTROLLER"),
            agent=_required(env, "SOS_IMAGE_AGENT"),
            node=_required(env, "SOS_IMAGE_NODE"),
            ovs=_required(env, "SOS_IMAGE_OVS"),
            pull_policy=policy,
            pull_secrets=tuple(filter(None, env.get("SOS_IMAGE_PULL_SECRETS", "").split(","))),
        ),
        deployment=env.get("SOS_DEPLOYMENT", "") or "sos-operator",
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        defaults_dir=Path(defaults) if defaults else None,
        http_port=int(_number(env, "SOS_HTTP_PORT", 8080, 0, 65535)),
        http_host=env.get("SOS_HTTP_HOST", "") or "0.0.0.0",  # noqa: S104
        log_level=level,
        resync_seconds=_number(env, "SOS_RESYNC_SECONDS", 60, 1, 3600),
        site_cleanup_seconds=_number(env, "SOS_SITE_CLEANUP_SECONDS", 60, 0, 600),
        controller_api_override=_pairs(env, "SOS_CONTROLLER_API_OVERRIDE"),
    )


def load_settings() -> Settings:
    """Settings of this process."""
    return parse_settings(os.environ)
