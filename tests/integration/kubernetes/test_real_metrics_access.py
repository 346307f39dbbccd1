"""A real API server reviews the clients of `/metrics`, with the rights that the chart gives; skipped without binaries."""

from __future__ import annotations

import pytest

from integration.kubernetes.loaded import CONFIG
from integration.kubernetes.real_api_server import RealApiServer
from integration.kubernetes.real_manifests import apply, manifests
from integration.kubernetes.rendering import NEEDED, helm_template, merged
from integration.kubernetes.test_metrics_access import page
from integration.plugins.serving import serving

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

KINDS = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


async def test_only_the_reader_of_the_chart_reads_metrics(tmp_path):
    monitored = {"router": {"monitoring": {"prometheus": {"enabled": True}}}}
    items = helm_template(merged(NEEDED, monitored), namespace="default", release="pool")
    async with RealApiServer(tmp_path) as real:
        for item in items:
            if item["kind"] in KINDS:
                await apply(real, item)
        for item in manifests("ServiceAccount"):
            await apply(real, item)
        await real.pool()
        await real.pod("a", "10.1.0.1")
        (tmp_path / "config.yaml").write_text(CONFIG)
        own, reader, stranger = [await real.service_account_token("default", name) for name in ("pool-epp", "pool-epp-metrics", "endpick")]
        options = ("--pool-name=pool", f"--kubeconfig={real.kubeconfig(own)}", "--metrics-endpoint-auth")
        async with serving(tmp_path, *options) as picker:
            assert await page(picker) == 401
            assert await page(picker, f"Bearer {reader}") == 200
            assert await page(picker, f"Bearer {stranger}") == 403
            assert await page(picker, f"Bearer {own}") == 403
            assert await page(picker, f"Bearer {reader[:-4]}AAAA") == 401
