"""Kubernetes Services as destinations: parsing, and reading them again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from operator_listing import listing
from sos_compile import KubernetesService
from sos_operator.cluster.kubernetes_services import READ_AGAIN_MAX, READ_AGAIN_S, REFUSED, ServiceObserver
from sos_operator.core.model.errors import NotReady, Refused
from sos_operator.core.model.kinds import K8S_SERVICE, Kind
from sos_operator.core.workloads.kubernetes_services import Place, named_services, parse_kubernetes_service


def service(name: str = "web", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    ports = [{"port": 443}, {"port": 53, "protocol": "UDP"}]
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": {"ports": ports} | spec, "status": status or {}}


def endpoint_slice(*endpoints: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"addressType": "IPv4", "endpoints": list(endpoints), "ports": [{"port": 5432, "protocol": "TCP"}]} | changes


def test_a_service_has_all_its_own_addresses() -> None:
    found = parse_kubernetes_service(
        service(
            clusterIP="10.96.0.7",
            clusterIPs=["10.96.0.7", "fd00::7"],
            externalIPs=["192.0.2.7"],
            status={"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}, {"hostname": "web.example"}]}},
        )
    )
    assert found == KubernetesService("shop", "web", ("10.96.0.7", "192.0.2.7", "198.51.100.7"), (443,))


def test_a_headless_service_has_the_addresses_of_its_ready_pods() -> None:
    slices = [
        endpoint_slice({"addresses": ["10.2.0.4"], "conditions": {"ready": True}}, {"addresses": ["10.2.0.5"]}),
        endpoint_slice({"addresses": ["10.2.0.6"], "conditions": {"ready": False}}, ports=[{"port": 9187}, {"port": None}]),
        endpoint_slice({"addresses": ["fd00::4"]}, addressType="IPv6", ports=[{"port": 1}]),
    ]
    found = parse_kubernetes_service(service("db", clusterIP="None"), slices)
    assert found == KubernetesService("shop", "db", ("10.2.0.4", "10.2.0.5"), (5432, 9187), headless=True)


@pytest.mark.parametrize("spec", [{"type": "ExternalName", "externalName": "x", "ports": None}, {"clusterIP": ""}, {"ports": "x"}])
def test_a_service_without_an_address_or_port(spec: dict[str, Any]) -> None:
    assert parse_kubernetes_service(service(**spec)).addresses == ()


def sos_service(name: str, to: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": {"from": {"site": "a"}, "to": to}}


def test_services_named_at_sites_of_this_cluster() -> None:
    site = {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": "b"}, "spec": {}}
    named = [
        sos_service("one", {"site": "b", "service": {"name": "web", "namespace": "shop"}}),
        sos_service("two", {"site": "b", "service": {"name": "db"}}),
        sos_service("same", {"site": "b", "service": {"name": "db", "namespace": "default"}}),
        sos_service("of-a-peer", {"site": "far", "service": {"name": "other"}}),
        sos_service("prefixes", {"site": "b"}),
    ]
    assert named_services(listing(objects=[site, *named])) == (("default", "db"), ("shop", "web"))


class Api:
    """API server with Services by place, which notes the reads of each."""

    def __init__(self, *names: str) -> None:
        self.services = {("shop", name): service(name, clusterIP=f"10.96.0.{i}") for i, name in enumerate(names, 1)}
        self.slices: list[dict[str, Any]] = []
        self.reads: list[Place] = []
        self.error: Exception | None = None

    async def get(self, kind: Kind, name: str, namespace: str) -> dict[str, Any] | None:
        assert kind is K8S_SERVICE
        self.reads.append((namespace, name))
        if self.error:
            raise self.error
        return self.services.get((namespace, name))

    async def list(self, _kind: Kind, namespace: str, label_selector: str) -> list[dict[str, Any]]:
        assert (namespace, label_selector) == ("shop", "kubernetes.io/service-name=db")
        return self.slices


def observer(api: Api, *, permitted: bool = True) -> ServiceObserver:
    return ServiceObserver(api, permitted=permitted)  # type: ignore[arg-type]


WEB, DB, GONE = ("shop", "web"), ("shop", "db"), ("shop", "gone")


def test_services_are_read_again_after_a_while() -> None:
    async def run() -> None:
        api = Api("web")
        services = observer(api)
        first = await services.see([WEB, GONE], 0)
        assert [each.addresses for each in first.services] == [("10.96.0.1",)]
        assert await services.see([WEB, GONE], READ_AGAIN_S - 1) == first
        assert len(api.reads) == 2
        api.services[WEB]["spec"]["clusterIP"] = "10.96.0.99"
        later = await services.see([WEB], READ_AGAIN_S)
        assert [each.addresses for each in later.services] == [("10.96.0.99",)]
        assert api.reads[2:] == [WEB]

    asyncio.run(run())


def test_endpoints_of_headless_services_are_read_with_them() -> None:
    async def run() -> None:
        api = Api("db")
        api.services[DB]["spec"]["clusterIP"] = "None"
        api.slices = [endpoint_slice({"addresses": ["10.2.0.4"]})]
        assert [each.addresses for each in (await observer(api).see([DB], 0)).services] == [("10.2.0.4",)]

    asyncio.run(run())


def test_a_pass_reads_a_bounded_number_of_services_again_oldest_first() -> None:
    async def run() -> None:
        names = [f"s{i:03}" for i in range(READ_AGAIN_MAX + 20)]
        api, places = Api(*names), [("shop", name) for name in names]
        services = observer(api)
        await services.see(places, 0)
        assert len(api.reads) == len(places)
        api.reads.clear()
        await services.see(places, READ_AGAIN_S)
        assert len(api.reads) == READ_AGAIN_MAX
        await services.see(places, READ_AGAIN_S + 1)
        assert sorted(api.reads) == places

    asyncio.run(run())


def test_known_addresses_stay_while_the_api_server_is_away() -> None:
    async def run() -> None:
        api = Api("web")
        services = observer(api)
        with pytest.raises(NotReady):
            api.error = NotReady("503")
            await services.see([WEB], 0)
        api.error = None
        first = await services.see([WEB], 1)
        api.error = NotReady("503")
        assert await services.see([WEB], 1 + READ_AGAIN_S) == first

    asyncio.run(run())


def test_without_the_right_only_services_that_name_a_service_are_refused() -> None:
    async def run() -> None:
        api = Api("web")
        assert await observer(api, permitted=False).see([], 0) == await observer(api).see([], 0)
        assert (await observer(api, permitted=False).see([WEB], 0)).problem == REFUSED and not api.reads
        services = observer(api)
        api.error = Refused("403")
        assert (await services.see([WEB], 0)).problem == REFUSED
        api.error = None
        assert (await services.see([WEB], 1)).problem == ""

    asyncio.run(run())
