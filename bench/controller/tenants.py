"""Services of many tenants, for the rows of `run.py --services`.

Each tenant has clients and servers of its own and up to SERVICES_EACH services, which differ by servers and ports. No two services overlap,
so the place of a connection's service in their order is the place of the only service that covers it.
"""

from __future__ import annotations

from typing import Any

TENANTS = 250
"""Number of tenants: each has a /24 of its sites' prefixes of 16 bits; the last six are left to agents."""
SERVICES_EACH = 16
"""Maximum number of services of a tenant: each has a /28 of the tenant's /24 of servers."""
MOST = TENANTS * SERVICES_EACH


def service(name: str, clients: str, servers: str, ports: list[tuple[int, int]]) -> dict[str, Any]:
    """Return a reactive service of the controller-config document."""
    return {
        **{"id": name, "priority": 100, "mode": "Accelerate", "percent": 100, "setup": "Reactive", "accept": "Early"},
        **{"from": {"site": "west", "prefixes": [clients]}, "to": {"site": "east", "prefixes": [servers]}},
        **{"ports": [{"first": first, "last": last} for first, last in ports], "paths": {"mode": "Shortest", "max": 1}},
        "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Auto"},
    }


def services(count: int) -> list[dict[str, Any]]:
    """Return services of as many tenants as there are; consecutive services have different tenants."""
    if not 1 <= count <= MOST:
        raise ValueError(f"{count} services: 1 to {MOST} can be measured")
    return [_service(number % TENANTS, number // TENANTS) for number in range(count)]


def _service(tenant: int, number: int) -> dict[str, Any]:
    ports = [(5000 + number, 5000 + number), (8192 + 256 * number, 8192 + 256 * number + 255)]
    return service(f"tenant{tenant}/service{number}", f"10.1.{tenant}.0/24", f"10.2.{tenant}.{16 * number}/28", ports)
