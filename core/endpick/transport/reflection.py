"""gRPC server reflection, with which tools such as grpcurl list and call the services of a port."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from endpick.requests.model import CloseCause
from endpick.transport.methods import Method, Methods

__all__ = ["reflection_methods"]

_REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names; older clients know only the second."""


def reflection_methods(methods: Methods) -> dict[str, Method]:
    """The reflection service for a port that serves `methods`; it lists itself as well."""
    services = tuple(sorted({path.split("/")[1] for path in methods} | set(_REFLECTION_SERVICES)))
    method = Method(lambda: ReflectionSession(services), holds_drain=False)
    return {f"/{service}/ServerReflectionInfo": method for service in _REFLECTION_SERVICES}


class ReflectionSession:
    """Answers each question with one reply."""

    waiting: Awaitable[object] | None = None
    finished = False

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = services

    def receive(self, message: bytes) -> Sequence[bytes]:
        """The answer to one question.

        Raises:
            ProtocolError: INVALID_ARGUMENT for bytes that are not a question.
        """
        from endpick.transport.descriptors import answer  # noqa: PLC0415 - no gateway asks; only a person with a tool does

        return (answer(self._services, message),)

    def resume(self, result: object) -> Sequence[bytes]:
        """Never called: nothing is awaited."""
        return ()

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Never called: nothing is awaited."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """Nothing is held."""
