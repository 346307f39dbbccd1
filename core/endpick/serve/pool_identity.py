"""Which Kubernetes pool this process serves, as llm-d's flags and the environment say it: for discovery that asks Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_GROUP = "inference.networking.k8s.io"
MAX_TARGET_PORTS = 8
_MAX_PORT = 65535


class PoolIdentityError(ValueError):
    """The flags contradict each other; the message says which."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """What the flags say; nothing of it is looked up here.

    Attributes:
        name: Of the InferencePool; None where `--pool-name` is not given.
        namespace: Of the pool, or of the pods that `selector` finds; empty for the one that this process runs in.
        group: API group of the InferencePool.
        selector: A label selector that finds pods without a pool; empty where a pool is meant.
        target_ports: Ports of each such pod at which a model server listens, each once, in the order given.
        pod_name: Of the pod that this process runs in; empty where the environment does not say.
        leader_election: Whether only one of several replicas is to serve.
        authorised_metrics: Whether readers of metrics are to show a token.
    """

    name: str | None = None
    namespace: str = ""
    group: str = DEFAULT_GROUP
    selector: str = ""
    target_ports: tuple[int, ...] = ()
    pod_name: str = ""
    leader_election: bool = False
    authorised_metrics: bool = True

    def __post_init__(self) -> None:
        if self.name and self.selector:
            raise PoolIdentityError("give --pool-name or --endpoint-selector, not both: the one names a pool, the other does without")
        if self.selector and not 1 <= len(self.target_ports) <= MAX_TARGET_PORTS:
            raise PoolIdentityError(f"--endpoint-selector needs 1 to {MAX_TARGET_PORTS} ports in --endpoint-target-ports")


def target_ports(given: Sequence[str]) -> tuple[int, ...]:
    """The ports of `--endpoint-target-ports`, which may be repeated or list several; each once, in the order given.

    Raises:
        PoolIdentityError: one of them is no port.
    """
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) <= _MAX_PORT):
            raise PoolIdentityError(f"'{word}' in --endpoint-target-ports is no port; write for example 8000,8001")
    return tuple(dict.fromkeys(int(word) for word in words))
