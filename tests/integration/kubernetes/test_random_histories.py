"""Whatever happens to Pods, to the pool and to the connection: the endpoints end as a simple model says."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from integration.kubernetes.api_server import PODS, POOLS, ApiServer, pod, pool
from integration.kubernetes.conftest import following

NAMES = "abcdef"
APPS = ("vllm", "vllm", "other")


def expected(server: ApiServer) -> dict[str, str]:
    """What the objects say now, read in the plainest way."""
    found = server.objects[POOLS].get("pool")
    if found is None:
        return {}
    members = {}
    for name, item in server.objects[PODS].items():
        ready = item["status"]["conditions"][0]["status"] == "True" and "deletionTimestamp" not in item["metadata"]
        if ready and item["metadata"]["labels"] == found["spec"]["selector"]["matchLabels"]:
            for rank, target in enumerate(found["spec"]["targetPorts"]):
                members[f"{name}-rank-{rank}"] = f"{item['status']['podIP']}:{target['number']}"
    return members


def happen(server: ApiServer, random: Random) -> None:
    """One thing out of all that can happen."""
    name, going = random.choice(NAMES), {"deletionTimestamp": "2026-08-22T00:00:00Z"} if random.random() < 0.2 else {}
    match random.randrange(12):
        case 0 | 1 | 2 | 3 | 4:
            labels = {"app": random.choice(APPS)}
            pod(server, name, f"10.0.0.{random.randrange(1, 4)}", ready=random.random() < 0.7, labels=labels, **going)
        case 5 | 6:
            if name in server.objects[PODS]:
                server.delete(PODS, name)
        case 7:
            pool(server, *random.sample([8000, 8001, 8002], random.randrange(1, 4)), labels={"app": random.choice(APPS)})
        case 8:
            if "pool" in server.objects[POOLS]:
                server.delete(POOLS, "pool")
        case 9:
            server.end_watches(random.choice([PODS, POOLS]), cut=random.random() < 0.5)
        case 10:
            server.compacted = server.version
            server.history.clear()
            server.end_watches(PODS, cut=True)
            server.end_watches(POOLS, cut=True)
        case 11:
            server.bookmark(random.choice([PODS, POOLS]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.asyncio
async def test_endpoints_match_the_objects(tmp_path, seed):
    random, server = Random(seed), ApiServer()
    pool(server)
    async with following(server, tmp_path, longestPause="50ms") as followed:
        for _ in range(12):
            for _ in range(random.randrange(1, 12)):
                happen(server, random)
                if random.random() < 0.5:
                    await asyncio.sleep(0)
            await followed.becomes(expected(server))
