"""What an answer of a server may take, and what the log says when one takes more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from endpick.api import Limit
from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Unless `maxPageBytes`, or of a service `maxAnswerBytes`, says otherwise. A page that is longer is refused unread: no model server has so
many metrics, and reading it would starve the rest."""
MAX_HEADERS = 200
"""More headers than a server of pages has use for, unless its pages may be longer than by default: the answer is refused."""
_HEADER_BYTES = 48 * 1024
"""Of the longest page, for each header."""
MAX_HEAD_BYTES = 64 * 1024
"""What may come before the headers are complete, with the same exception; the parser itself would keep a header that never ends."""
_PAGE_OF_HEAD = 128
"""So many times as long as its headers the longest page may be."""
_PAGE_OF_HANDSHAKE = 512
"""So many times as long as the handshake of its TLS, of which 24 KiB are always read."""
_MOST_PAGE_BYTES = 64 * 1024 * 1024
"""That an operator may allow: everything waits while a page is read."""
PAGE_BYTES = Annotated[
    int,
    Field(
        alias="maxPageBytes",
        ge=MAX_HEAD_BYTES,  # else the headers alone could be more than an answer may have
        le=_MOST_PAGE_BYTES,
        description="Longest page that is read, in bytes and unpacked. Everything else waits for a moment while one is read: the longer it "
        "may be, the longer.",
    ),
]
"""How long the pages of a source may be."""
ANSWER_BYTES = Annotated[
    int,
    Field(
        alias="maxAnswerBytes",
        ge=MAX_HEAD_BYTES,
        le=_MOST_PAGE_BYTES,
        description="Longest answer, in bytes and unpacked; a longer one is none. 8 MiB hold half a million tokens; all else waits while "
        "it is read.",
    ),
]
"""How long the answers to a producer may be."""
SHORT_CHUNKS, SHORT_CHUNK_BYTES = 1000, 64
"""So many chunks may be of any length; of more the others have 64 bytes on average, which is a line of a page. Forty servers that sent
chunks of one byte at the same moment took 0.15 s of it before the first of them had sent 20,000."""
_CHUNK_BYTES = 400
"""The longest page may come in chunks of so many. Each costs a call, so that chunks of one byte would keep the thread busy."""
JSON_PART_BYTES = 16
"""Of the longest page, for each part of an answer in JSON: numbers and texts count once, lists and objects four times. Half a million
tokens of a prompt fit into 8 MiB."""

LONG_PAGE = Limit("maxPageBytes", "a page was refused: it is longer than maxPageBytes; see what is written there, or raise maxPageBytes")
LONG_ANSWER = Limit(
    "MAX_ANSWER_BYTES",
    "a page was refused: its server sent more than twice maxPageBytes (MAX_ANSWER_BYTES); see what answers there, or raise maxPageBytes",
)
MANY_CHUNKS = Limit(
    "MAX_CHUNKS",
    f"a page was refused: it comes in more chunks than one for each {_CHUNK_BYTES} bytes of maxPageBytes (MAX_CHUNKS), or in many of a few "
    "bytes; see what answers there, or raise maxPageBytes",
)
MANY_PARTS = Limit(
    "MAX_JSON_PARTS",
    f"an answer was refused: as JSON it has more parts than one for each {JSON_PART_BYTES} bytes of maxPageBytes, of a list of models 40 "
    "(MAX_JSON_PARTS); see what answers there, or raise maxPageBytes",
)
LONG_HEAD = Limit(
    "MAX_HEAD_BYTES",
    f"a page was refused: its headers are longer than {MAX_HEAD_BYTES // 2**10} KiB, and than one {_PAGE_OF_HEAD}th of maxPageBytes "
    "(MAX_HEAD_BYTES); see what answers there, or raise maxPageBytes",
)
MANY_HEADERS = Limit(
    "MAX_HEADERS",
    f"a page was refused: it has more than {MAX_HEADERS} headers, and than one for each {_HEADER_BYTES // 2**10} KiB of maxPageBytes "
    "(MAX_HEADERS); see what answers there, or raise maxPageBytes",
)
LONG_HANDSHAKE = Limit(
    "MOST_HANDSHAKE_BYTES",
    f"a server was not asked: the handshake of its TLS is longer than {MOST_HANDSHAKE_BYTES // 2**10} KiB, and than one "
    f"{_PAGE_OF_HANDSHAKE}th of maxPageBytes (MOST_HANDSHAKE_BYTES); see which certificates it shows, or raise maxPageBytes",
)
MANY_CONNECTIONS = Limit(
    "MOST_CONNECTIONS",
    "a server was not asked: as many connections to servers are in use as three eighths of the limit of open files (MOST_CONNECTIONS); "
    "raise that limit (ulimit -n)",
)
SOURCE_LIMITS = (LONG_PAGE, LONG_ANSWER, LONG_HEAD, MANY_HEADERS, MANY_CHUNKS, MANY_PARTS, LONG_HANDSHAKE, MANY_CONNECTIONS)
"""Those of an answer, and of asking, for the `Limits` of who has the parameter `maxPageBytes`."""

SERVICE_LONG_PAGE = Limit(
    "maxAnswerBytes",
    "an answer of a service was refused: it is longer than maxAnswerBytes; see what answers there, or raise maxAnswerBytes",
)
SERVICE_LONG_ANSWER = Limit(
    "MAX_ANSWER_BYTES",
    "an answer of a service was refused: it took more than twice maxAnswerBytes to send (MAX_ANSWER_BYTES); see what answers there, or "
    "raise maxAnswerBytes",
)
SERVICE_MANY_CHUNKS = Limit(
    "MAX_CHUNKS",
    f"an answer of a service was refused: it comes in more chunks than one for each {_CHUNK_BYTES} bytes of maxAnswerBytes (MAX_CHUNKS), "
    "or in many of a few bytes; see what answers there, or raise maxAnswerBytes",
)
SERVICE_MANY_PARTS = Limit(
    "MAX_JSON_PARTS",
    f"an answer of a service was refused: as JSON it has more parts than one for each {JSON_PART_BYTES} bytes of maxAnswerBytes "
    "(MAX_JSON_PARTS); see what answers there, or raise maxAnswerBytes",
)
SERVICE_LONG_HEAD = Limit(
    "MAX_HEAD_BYTES",
    f"an answer of a service was refused: its headers are longer than {MAX_HEAD_BYTES // 2**10} KiB, and than one {_PAGE_OF_HEAD}th of "
    "maxAnswerBytes (MAX_HEAD_BYTES); see what answers there, or raise maxAnswerBytes",
)
SERVICE_MANY_HEADERS = Limit(
    "MAX_HEADERS",
    f"an answer of a service was refused: it has more than {MAX_HEADERS} headers, and than one for each {_HEADER_BYTES // 2**10} KiB of "
    "maxAnswerBytes (MAX_HEADERS); see what answers there, or raise maxAnswerBytes",
)
SERVICE_LONG_HANDSHAKE = Limit(
    "MOST_HANDSHAKE_BYTES",
    f"a service was not asked: the handshake of its TLS is longer than {MOST_HANDSHAKE_BYTES // 2**10} KiB, and than one "
    f"{_PAGE_OF_HANDSHAKE}th of maxAnswerBytes (MOST_HANDSHAKE_BYTES); see which certificates it shows, or raise maxAnswerBytes",
)
PAGE_LIMITS = (
    *(SERVICE_LONG_PAGE, SERVICE_LONG_ANSWER, SERVICE_MANY_CHUNKS, SERVICE_MANY_PARTS),
    *(SERVICE_LONG_HEAD, SERVICE_MANY_HEADERS, SERVICE_LONG_HANDSHAKE, MANY_CONNECTIONS),
)
"""As `SOURCE_LIMITS`, for who has the parameter `maxAnswerBytes`: what producers ask."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """How long the answers may be that one plugin asks for, and under which limits longer ones count.

    Attributes:
        page_bytes: Of a page, unpacked.
        long_page: For one that is longer.
        long_answer: For one that takes more than `answer_bytes`.
        many_chunks: For one that comes in more than `chunks`.
        many_parts: For one that has too many parts as JSON.
        long_head: For one whose headers take more than `head_bytes`.
        many_headers: For one that has more than `headers`.
        long_handshake: For a server that sends more than `handshake_bytes` before it answers.
        answer_bytes: As it comes, with its headers and what its transfer encoding adds.
        chunks: It may come in.
        head_bytes: Before its headers are complete.
        headers: It may have.
        handshake_bytes: Of TLS, for a connection.
    """

    page_bytes: int
    long_page: Limit = LONG_PAGE
    long_answer: Limit = LONG_ANSWER
    many_chunks: Limit = MANY_CHUNKS
    many_parts: Limit = MANY_PARTS
    long_head: Limit = LONG_HEAD
    many_headers: Limit = MANY_HEADERS
    long_handshake: Limit = LONG_HANDSHAKE
    answer_bytes: int = field(init=False)
    chunks: int = field(init=False)
    head_bytes: int = field(init=False)
    headers: int = field(init=False)
    handshake_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answer_bytes", 2 * self.page_bytes)
        object.__setattr__(self, "chunks", max(SHORT_CHUNKS, self.page_bytes // _CHUNK_BYTES))
        object.__setattr__(self, "head_bytes", max(MAX_HEAD_BYTES, self.page_bytes // _PAGE_OF_HEAD))
        object.__setattr__(self, "headers", max(MAX_HEADERS, self.page_bytes // _HEADER_BYTES))
        object.__setattr__(self, "handshake_bytes", max(MOST_HANDSHAKE_BYTES, self.page_bytes // _PAGE_OF_HANDSHAKE))

    @property
    def shown(self) -> str:
        """The longest page, as messages say it."""
        return f"{self.page_bytes / 2**20:.6g} MiB"


def stretch_of(page_bytes: int) -> float:
    """So many times as long as one of the default size the longest page may take, wherever its time is bounded; 1 at least."""
    return max(1.0, page_bytes / MAX_PAGE_BYTES)


def service_size(max_answer_bytes: int) -> PageSize:
    """That of the answers of what producers ask, with `PAGE_LIMITS`."""
    return PageSize(
        max_answer_bytes,
        SERVICE_LONG_PAGE,
        SERVICE_LONG_ANSWER,
        SERVICE_MANY_CHUNKS,
        SERVICE_MANY_PARTS,
        SERVICE_LONG_HEAD,
        SERVICE_MANY_HEADERS,
        SERVICE_LONG_HANDSHAKE,
    )


SERVICE_SIZE = service_size(MAX_PAGE_BYTES)
"""Unless an operator says otherwise."""
