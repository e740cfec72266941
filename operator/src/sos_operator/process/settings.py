"""All settings, read from the environment once at start. No other module reads the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sos_compile import DefaultResources, NetworkPolicies, Ports, ServiceAccounts, find_port_conflict
from sos_compile.model.world import non_root_security

from sos_operator.core.model.options import Images, PodMonitors, Settings


class SettingsError(ValueError):
    """An environment variable is missing or has an invalid value."""


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


def _yes(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "")
    if text not in ("", "true", "false"):
        raise SettingsError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def _pairs(env: Mapping[str, str], name: str) -> dict[str, str]:
    pairs = {}
    for item in filter(None, (part.strip() for part in env.get(name, "").split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise SettingsError(f"{name}: {item!r} is not NAME=URL")
        pairs[key] = value.rstrip("/")
    return pairs


def _object(env: Mapping[str, str], name: str, fields: Mapping[str, type]) -> dict[str, Any] | None:
    """A JSON object with at most these fields, None if the variable is empty."""
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{name}: not a JSON object")
    for key, item in value.items():
        if key not in fields:
            raise SettingsError(f"{name}: {key!r} is none of {', '.join(fields)}")
        if not isinstance(item, fields[key]):
            raise SettingsError(f"{name}.{key}: {item!r} is not a JSON {'array' if fields[key] is list else fields[key].__name__}")
    return value


def _network_policies(env: Mapping[str, str]) -> NetworkPolicies | None:
    given = _object(env, "SOS_NETWORK_POLICIES", {"openflow": list, "api": list})
    if given is None:
        return None
    return NetworkPolicies(openflow=tuple(given.get("openflow", [])), api=tuple(given.get("api", [])))


def _resources(env: Mapping[str, str]) -> DefaultResources:
    fields = {"ovs": dict, "node": dict, "agent": dict, "controller": dict}
    return DefaultResources(**(_object(env, "SOS_RESOURCES", fields) or {}))


def _pod_security(env: Mapping[str, str]) -> dict[str, Any]:
    fields = {
        **dict.fromkeys(("runAsNonRoot",), bool),
        **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), int),
        **dict.fromkeys(("supplementalGroups",), list),
        **dict.fromkeys(("seccompProfile", "seLinuxOptions", "appArmorProfile"), dict),
        **dict.fromkeys(("fsGroupChangePolicy",), str),
    }
    given = _object(env, "SOS_POD_SECURITY", fields)
    return non_root_security() if given is None else given


def _service_accounts(env: Mapping[str, str]) -> ServiceAccounts:
    return ServiceAccounts(**(_object(env, "SOS_SERVICE_ACCOUNTS", {"controller": str, "agent": str, "node": str}) or {}))


def _ports(env: Mapping[str, str]) -> Ports:
    ports = Ports(**(_object(env, "SOS_PORTS", {"node": int, "agents": int, "tunnels": int}) or {}))
    conflict = find_port_conflict(ports)
    if conflict is not None:
        raise SettingsError(f"SOS_PORTS.{conflict[0]}: {conflict[1]}")
    return ports


def _pod_monitors(env: Mapping[str, str]) -> PodMonitors | None:
    given = _object(env, "SOS_POD_MONITORS", {"interval": str, "labels": dict})
    return None if given is None else PodMonitors(**given)


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
        release=env.get("SOS_RELEASE", "") or "sos",
        data_plane_log_level=env.get("SOS_DATA_PLANE_LOG_LEVEL", "") or "info",
        controller_priority=env.get("SOS_CONTROLLER_PRIORITY_CLASS", "system-cluster-critical"),
        node_priority=env.get("SOS_NODE_PRIORITY_CLASS", "system-node-critical"),
        resources=_resources(env),
        ports=_ports(env),
        load_modules=_yes(env, "SOS_LOAD_MODULES"),
        service_accounts=_service_accounts(env),
        pod_security=_pod_security(env),
        reads_pods=_yes(env, "SOS_READ_PODS"),
        reads_services=_yes(env, "SOS_READ_SERVICES"),
        network_policies=_network_policies(env),
        pod_monitors=_pod_monitors(env),
        deployment=env.get("SOS_DEPLOYMENT", "") or "sos-operator",
        test=env.get("SOS_TEST", "") or "sos-test",
        lease=env.get("SOS_LEASE", ""),
        lease_seconds=int(_number(env, "SOS_LEASE_SECONDS", 15, 3, 60)),
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        defaults_dir=Path(defaults) if defaults else None,
        http_port=int(_number(env, "SOS_HTTP_PORT", 8080, 0, 65535)),
        http_host=env.get("SOS_HTTP_HOST", "") or "0.0.0.0",  # noqa: S104
        log_level=level,
        resync_seconds=_number(env, "SOS_RESYNC_SECONDS", 60, 1, 3600),
        site_cleanup_seconds=_number(env, "SOS_SITE_CLEANUP_SECONDS", 60, 0, 600),
        key_overlap_seconds=_number(env, "SOS_KEY_OVERLAP_SECONDS", 180, 1, 86_400),
        controller_api_override=_pairs(env, "SOS_CONTROLLER_API_OVERRIDE"),
    )


def load_settings() -> Settings:
    """Settings of this process."""
    return parse_settings(os.environ)
