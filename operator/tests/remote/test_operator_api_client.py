"""HTTP client of a controller's API."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from sos_operator.core.model.errors import Refused
from sos_operator.remote.controller_api import ControllerApi, open_session


def test_the_connection_of_a_refused_answer_is_not_reused() -> None:
    """Until a Service's address is programmed, requests leave the cluster; an unrelated server may answer and keep the connection open."""
    strangers: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        if not strangers or request.transport is strangers[0].transport:
            strangers.append(request)
            return web.Response(status=404)
        return web.json_response({"agents": []})

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/v1/status", answer)
        async with TestServer(app) as server, open_session() as session:
            api = ControllerApi(session)
            with pytest.raises(Refused, match="HTTP 404"):
                await api.status(str(server.make_url("")))
            assert await api.status(str(server.make_url(""))) == {"agents": []}

    asyncio.run(ask())
    assert len(strangers) == 1
