"""Labels the leader's Pod, so that a Service can select it."""

from __future__ import annotations

import asyncio
import os

from lightkube.types import PatchType

from endpick_kubernetes.follower import POD, Connection, describe, status_of

_ATTEMPT_SECONDS = 5.0
_PAUSE_SECONDS = 0.5


class LeaderLabel:
    """Keeps the label on this Pod while it leads, and then off the Pods of other replicas."""

    def __init__(self, label: str, connection: Connection) -> None:
        self._key, _, self._value = label.partition("=")
        self._pod_name = os.environ.get("POD_NAME", "")
        self._connection = connection
        self._is_due = False
        self._changed = asyncio.Event()
        self._trouble = ""

    def put(self, is_due: bool) -> None:
        """Set whether this Pod should have the label."""
        if is_due != self._is_due:
            self._is_due = is_due
            self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    await self._apply()
                self._trouble = ""
            except Exception as error:  # tried again until it holds
                self._log_once(_describe(error))
                self._changed.set()
                await asyncio.sleep(_PAUSE_SECONDS)

    def _log_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._connection.logger.warning("the label %s of the leader cannot be set, trying again: %s", self._key, trouble)

    async def _apply(self) -> None:
        if not self._is_due:
            await self._patch(self._pod_name, None)
            return
        await self._patch(self._pod_name, self._value)  # first: one Pod too many can route, none cannot
        labelled = self._connection.client.list(POD, namespace=self._connection.namespace, labels={self._key: self._value})
        for name in [pod["metadata"]["name"] async for pod in labelled]:
            if name != self._pod_name:
                await self._patch(name, None)

    async def _patch(self, name: str, value: str | None) -> None:
        change = {"metadata": {"labels": {self._key: value}}}
        try:
            await self._connection.client.patch(POD, name, change, namespace=self._connection.namespace, patch_type=PatchType.MERGE)
        except Exception as error:
            if value is not None or status_of(error) != 404:
                raise


def _describe(error: Exception) -> str:
    if status_of(error) == 403:
        return f"{describe(error)}; the Role needs the verbs `list` and `patch` for pods"
    return describe(error) if str(error) else "no answer in time"
