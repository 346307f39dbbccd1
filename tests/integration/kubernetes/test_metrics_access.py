"""Clients of `/metrics` are checked by reviews of the fake API server, and of a real one where there are binaries."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from integration.kubernetes.api_server import ApiServer, kubeconfig, pod, pool, status
from integration.kubernetes.api_server import serving as serving_api
from integration.kubernetes.test_leader_election import CONFIG
from integration.plugins.serving import Picker, serving

pytestmark = pytest.mark.asyncio

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
USERS = {"token-of-prometheus": "prometheus", "token-of-somebody": "somebody"}


def reviewing(server: ApiServer) -> list[str]:
    """Let the server answer reviews; the paths that were asked."""
    truth, asked = server.handle, []

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path not in (TOKENS, ACCESS):
            return await truth(request)
        asked.append(request.path)
        spec = (await request.json())["spec"]
        if spec.get("token") == "token-in-trouble":
            return status(500, "InternalError")
        if request.path == TOKENS:
            user = USERS.get(spec["token"])
            return web.json_response({"status": {"authenticated": True, "user": {"username": user, "groups": ["g"]}} if user else {}})
        assert spec["groups"] == ["g"]
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return web.json_response({"status": {"allowed": spec["user"] == "prometheus"}})

    server.handle = handle
    return asked


async def page(picker: Picker, authorization: str = "", path: str = "/metrics") -> int:
    headers = {"Authorization": authorization} if authorization else {}
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}{path}", headers=headers) as response:
        assert ("llm_d_epp_info" in await response.text()) == (response.status == 200 and path == "/metrics")
        return response.status


async def test_metrics_are_for_those_whom_kubernetes_lets_read_them(server, tmp_path):
    asked = reviewing(server)
    pool(server)
    pod(server, "a", "10.0.0.1")
    (tmp_path / "config.yaml").write_text(CONFIG)
    async with serving_api(server) as url:
        options = ("--pool-name=pool", f"--kubeconfig={kubeconfig(tmp_path / 'kubeconfig', url)}", "--metrics-endpoint-auth")
        async with serving(tmp_path, *options) as picker:
            assert await page(picker) == 401
            assert await page(picker, "Basic token-of-prometheus") == 401
            assert asked == []
            assert [await page(picker, "Bearer token-of-prometheus") for _ in range(3)] == [200] * 3
            assert asked == [TOKENS, ACCESS], "an answer is kept"
            assert await page(picker, "Bearer token-of-somebody") == 403
            assert await page(picker, "Bearer of-nobody") == 401
            assert await page(picker, "Bearer token-in-trouble") == 503
            assert await page(picker, path="/healthz") == 200
            assert await picker.logged("its token cannot be checked: ApiError")
