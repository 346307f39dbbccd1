"""The metrics port of a supervisor, which merges the pages of all workers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout, web
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from endpick.serve.admin import AdminServer
from endpick.serve.admin_api import NO_ACCESS, admits
from endpick.serve.settings import ServeSettings

_TIMEOUT: Final = ClientTimeout(total=5.0)
_SUMMED: Final = frozenset({"counter", "histogram", "summary"})
_SUMMED_GAUGES: Final = frozenset(
    {
        "endpick_memory_held_bytes",
        "endpick_memory_limit_bytes",
        "llm_d_epp_extproc_streams_inflight",
        "llm_d_epp_flow_control_queue_bytes",
        "llm_d_epp_flow_control_queue_size",
        "llm_d_epp_inflight_requests",
        "llm_d_epp_inflight_tokens",
        "llm_d_epp_request_running",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
)
_DECISIONS: Final = "/decisions"


@dataclass(frozen=True, slots=True)
class Page:
    """The response of one worker to a request for one of its pages."""

    worker: int
    status: int
    content_type: str
    body: bytes

    @property
    def is_ok(self) -> bool:
        """True if the worker answered with status 200."""
        return self.status == web.HTTPOk.status_code


class WorkerPages:
    """Adds up the counters and loads of all workers. Of other gauges, the largest counts."""

    def __init__(self, settings: ServeSettings, ports: Callable[[], Mapping[int, int | None]]) -> None:
        """Make the pages; `ports` returns each worker's metrics port, None while it does not serve."""
        self._ports = ports
        self._token = None if settings.admin_token_file is None else settings.admin_token_file.read_text().strip()
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/{path:.*}", self._admin)
        self._server = AdminServer(application, settings.metrics_host, settings.metrics_port, settings.metrics_tls)
        self._session: ClientSession | None = None
        self._last: dict[int, str] = {}  # metrics page of each worker
        self._ended: list[str] = []  # those of workers that have ended

    def ended(self, worker: int) -> None:
        """Keep the counters of a worker that has ended, so that sums do not fall."""
        last = self._last.pop(worker, None)
        if last is not None:
            self._ended = [generate_latest(MergedPages([], [*self._ended, last])).decode()]

    async def start(self) -> int:
        """Start to serve, and return the bound port. Raises ListenError, TlsError."""
        port = await self._server.start()
        self._session = ClientSession(timeout=_TIMEOUT)
        return port

    async def stop(self) -> None:
        """Close the port, and the connections to the workers."""
        await self._server.stop()
        if self._session is not None:
            await self._session.close()

    async def _metrics(self, request: web.Request) -> web.Response:
        pages = await self._from_all("/metrics", request)
        refused = next((page for page in pages if not page.is_ok), None)
        if refused is not None:
            return web.Response(status=refused.status, headers={"WWW-Authenticate": "Bearer"})
        texts = {page.worker: page.body.decode() for page in pages}
        is_whole = "worker" not in request.query
        if is_whole:
            self._last |= texts
            texts = self._last  # includes workers that do not answer in time, because a falling sum looks like a restart
        merged = MergedPages(list(texts.values()), self._ended if is_whole else ())
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.to_thread(encode, merged)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _healthz(self, request: web.Request) -> web.Response:
        pages = await self._from_all("/healthz", request)
        ready = any(page.is_ok for page in pages)
        answers = {page.worker: page.body.decode().splitlines() for page in pages}
        lines = {worker: answers.get(worker, ["does not serve"]) for worker in self._asked(request)}
        text = "".join(f"worker {worker}: {line}\n" for worker, reported in lines.items() for line in reported)
        return web.Response(text=text, status=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _admin(self, request: web.Request) -> web.Response:
        if not admits(request, self._token):
            return web.json_response({"error": NO_ACCESS}, status=HTTPStatus.FORBIDDEN)
        pages = await self._from_all(request.path, request)
        if not pages:
            return web.json_response({"error": "no worker serves"}, status=HTTPStatus.SERVICE_UNAVAILABLE)
        if request.path == _DECISIONS and all(page.is_ok for page in pages):
            return web.Response(body=_joined(pages, request.query.get("limit")), content_type="application/json")
        page = next((page for page in pages if page.is_ok), pages[0])
        return web.Response(body=page.body, status=page.status, content_type=page.content_type)

    async def _from_all(self, path: str, request: web.Request) -> list[Page]:
        """Return the pages of all workers, or of the worker that the query names."""
        asked = [self._from(number, port, path, request) for number, port in self._asked(request).items() if port is not None]
        return [page for page in await asyncio.gather(*asked) if page is not None]

    def _asked(self, request: web.Request) -> dict[int, int | None]:
        """Return the ports of all workers, or of the worker in the query. Raises HTTPNotFound."""
        wanted, ports = request.query.get("worker"), self._ports()
        asked = {number: port for number, port in sorted(ports.items()) if wanted in (None, str(number))}
        if not asked:
            raise web.HTTPNotFound(text=f"there is no worker '{wanted}', only 0 to {len(ports) - 1}\n")
        return asked

    async def _from(self, worker: int, port: int, path: str, request: web.Request) -> Page | None:
        """Return the page of one worker; None if it does not answer."""
        assert self._session is not None
        headers = {name: request.headers[name] for name in ("Authorization",) if name in request.headers}
        try:
            async with self._session.get(f"http://127.0.0.1:{port}{path}", params=request.query, headers=headers) as response:
                return Page(worker, response.status, response.content_type, await response.read())
        except (ClientError, TimeoutError):
            return None


def _joined(pages: Iterable[Page], limit: str | None) -> bytes:
    """Merge the decisions of all workers, newest first."""
    found = [decision for page in pages for decision in orjson.loads(page.body)["decisions"]]
    found.sort(key=lambda decision: str(decision["time"]), reverse=True)
    return orjson.dumps({"decisions": found if limit is None else found[: int(limit)]})


def _larger(left: float, right: float) -> float:
    """Return the larger number; NaN, which means no value, is less than any."""
    return right if math.isnan(left) or right > left else left


class MergedPages(CollectorRegistry):
    """The sum of several metrics pages, and of the counters of workers that have ended."""

    def __init__(self, pages: Iterable[str], ended: Iterable[str] = ()) -> None:
        super().__init__(auto_describe=False)
        self._pages = (*((page, False) for page in pages), *((page, True) for page in ended))

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for page, has_ended in self._pages:
            for family in text_string_to_metric_families(page):
                if has_ended and family.type not in _SUMMED:
                    continue
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged = values.setdefault(family.name, {})
                adds = known.type in _SUMMED or family.name in _SUMMED_GAUGES
                for sample in family.samples:
                    key = sample.name, tuple(sample.labels.items())
                    before = merged.get(key)
                    merged[key] = sample.value if before is None else before + sample.value if adds else _larger(before, sample.value)
        for name, family in families.items():
            for (sample_name, labels), value in values[name].items():
                family.add_sample(sample_name, dict(labels), value)
            yield family
