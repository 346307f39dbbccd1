"""The self-check of an index of what was sent: what a broken promise says of everything else that was sent there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.registry import CollectorRegistry

from endpick.api import CycleState, Endpoint, FloatArray, ResponseEnd, ResponseHead, TerminationCause
from endpick_builtin.producers.prefix_tree import PrefixTree
from endpick_builtin.producers.prompt_blocks import FINGERPRINT_BYTES
from endpick_builtin.producers.self_check import Finding, Promise, SelfCheck


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request that is being answered.

    Attributes:
        promise: What the index said.
        prompts: The fingerprints of their blocks.
        uses: What the endpoint was believed to hold of them, in stretches of blocks: how many, and the insertion that had used them last,
            before this request.
    """

    promise: Promise
    prompts: Sequence[bytes]
    uses: Sequence[tuple[int, int]]

    def use_of(self, position: int) -> int:
        """The insertion that had last used the matched block at this position; 0 where there is none."""
        for blocks, insertion in self.uses:
            if position < blocks:
                return insertion
            position -= blocks
        return 0


class PrefixPromises:
    """Keeps what was promised of each request in flight.

    Engines drop what was used least recently. Where a block proved missing, all that was last used before it is gone as well, by eviction
    or by a restart, and is purged. The prompt itself stays, for the engine has just computed it anew; an endpoint that keeps breaking
    promises does not even keep that, and loses it, too.
    """

    def __init__(self, index: PrefixTree, registry: CollectorRegistry | None) -> None:
        self._index = index
        self._check = SelfCheck(registry)
        self.heard = False
        """Whether any server has reported cached tokens: until then promises are not worth keeping, and most fleets never do."""

    def calibrated(self, matched: FloatArray, members: Sequence[Endpoint]) -> FloatArray:
        """Matches of all endpoints of a pool, each times its endpoint's calibration."""
        return matched * self._check.factors(members)

    def promise(self, state: CycleState, endpoint: Endpoint, prompts: Sequence[bytes], matched: float) -> None:
        """The request goes to this endpoint, which has not been noted in the index yet; `matched` is what the index said of it."""
        uses = [stretch for prompt in prompts for stretch in self._index.uses(endpoint.name, prompt)]
        total = sum(map(len, prompts)) // FINGERPRINT_BYTES
        state.private["sent"] = _Sent(Promise(endpoint, matched, total), prompts, uses)

    def started(self, head: ResponseHead, state: CycleState) -> None:
        """Another endpoint may have served, or none: then there is nothing to compare."""
        sent = state.private.get("sent")
        if isinstance(sent, _Sent) and (head.endpoint is not sent.promise.endpoint or head.status != 200):
            del state.private["sent"]

    def ended(self, end: ResponseEnd, state: CycleState) -> None:
        """Compare, and purge what proved false."""
        if not self.heard:
            self.heard = end.usage is not None and end.usage.cached_tokens is not None
            return
        sent = state.private.pop("sent", None)
        if not isinstance(sent, _Sent) or end.usage is None or end.cause is not TerminationCause.NATURAL:
            return
        promise = sent.promise
        finding = self._check.judge(promise, end.usage)
        if finding is Finding.KEPT:
            return
        found, name = promise.found_blocks(end.usage), promise.endpoint.name
        purged = self._index.forget_unused_since(name, sent.use_of(found))
        if finding is Finding.BROKEN_AGAIN:
            for prompt in sent.prompts:
                purged += self._index.forget(name, prompt, max(0, found))
                found -= len(prompt) // FINGERPRINT_BYTES
        self._check.purged(promise.endpoint, purged)

    def forget(self, name: str) -> None:
        """The endpoint has left."""
        self._check.forget(name)
