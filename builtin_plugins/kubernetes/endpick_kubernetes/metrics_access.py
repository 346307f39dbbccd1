"""Asks the API server who may read `/metrics`, as controller-runtime does: TokenReview, then SubjectAccessReview."""

from __future__ import annotations

from time import monotonic
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import GenericGlobalResource, create_api_info

from endpick.api.discovery import MetricsAccess

_KEPT_SECONDS = 60.0
_MOST_ANSWERS = 1000


def _review(group: str, kind: str) -> type[GenericGlobalResource]:
    info = create_api_info(group, "v1", kind, f"{kind.lower()}s")
    return type(kind, (GenericGlobalResource,), {"_api_info": info})


_TOKEN = _review("authentication.k8s.io", "TokenReview")
_ACCESS = _review("authorization.k8s.io", "SubjectAccessReview")


class MetricsReaders:
    """Checks who may read `/metrics`, and keeps the answers for a minute."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._answers: dict[str, tuple[float, MetricsAccess]] = {}

    async def access(self, token: str) -> MetricsAccess:
        asked_at, answer = self._answers.get(token, (float("-inf"), MetricsAccess.UNKNOWN))
        if monotonic() - asked_at >= _KEPT_SECONDS:
            answer = await self._ask(token)
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[token] = monotonic(), answer
        return answer

    async def _ask(self, token: str) -> MetricsAccess:
        status = await self._create(_TOKEN, {"token": token})
        if not status.get("authenticated"):
            return MetricsAccess.UNKNOWN
        user = status["user"]
        subject = {"user": user.get("username", ""), **{name: user[name] for name in ("uid", "groups", "extra") if name in user}}
        status = await self._create(_ACCESS, {**subject, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}})
        return MetricsAccess.GRANTED if status.get("allowed") else MetricsAccess.FORBIDDEN

    async def _create(self, review: type[GenericGlobalResource], spec: dict[str, Any]) -> dict[str, Any]:
        content: dict[str, Any] = {"metadata": {}, "spec": spec}
        answer = await self._client.create(review(**content))
        status: dict[str, Any] = answer["status"]
        return status
