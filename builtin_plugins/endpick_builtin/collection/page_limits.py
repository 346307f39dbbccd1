"""What an answer of a server may take, and what the log says when one takes more."""

from __future__ import annotations

from endpick.api import Limit

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""A page that is longer is refused unread: no model server has so many metrics, and reading it would starve the rest."""
MAX_HEADERS = 200
"""More headers than a server of pages has use for: the answer is refused."""
MAX_HEAD_BYTES = 64 * 1024
"""What may come before the headers are complete; the parser itself would keep a header that never ends."""
MAX_ANSWER_BYTES = 2 * MAX_PAGE_BYTES
"""An answer as it comes, with what its transfer encoding adds."""
MAX_CHUNKS = 20_000
"""Of one answer: the longest page in chunks of 400 bytes. Each costs a call, so that chunks of one byte would keep the thread busy."""
SHORT_CHUNKS, SHORT_CHUNK_BYTES = 1000, 64
"""So many may be of any length; of more the others have 64 bytes on average, which is a line of a page. Forty servers that sent chunks of
one byte at the same moment took 0.15 s of it before the first of them had sent 20,000."""

MAX_JSON_PARTS = 524_288
"""Of an answer in JSON: numbers and texts count once, lists and objects four times. Half a million tokens of a prompt fit."""

LONG_PAGE = Limit(
    "MAX_PAGE_BYTES",
    f"a page was refused: it is longer than {MAX_PAGE_BYTES // 2**20} MiB (MAX_PAGE_BYTES, fixed); see what is written there",
)
LONG_ANSWER = Limit(
    "MAX_ANSWER_BYTES",
    f"a page was refused: its server sent more than {MAX_ANSWER_BYTES // 2**20} MiB (MAX_ANSWER_BYTES, fixed); see what answers there",
)
LONG_HEAD = Limit(
    "MAX_HEAD_BYTES",
    f"a page was refused: its headers are longer than {MAX_HEAD_BYTES // 2**10} KiB (MAX_HEAD_BYTES, fixed); see what answers there",
)
MANY_HEADERS = Limit(
    "MAX_HEADERS", f"a page was refused: it has more than {MAX_HEADERS} headers (MAX_HEADERS, fixed); see what answers there"
)
MANY_CHUNKS = Limit(
    "MAX_CHUNKS",
    f"a page was refused: it comes in more than {MAX_CHUNKS} chunks, or in many of a few bytes (MAX_CHUNKS, fixed); see what answers there",
)
MANY_PARTS = Limit(
    "MAX_JSON_PARTS",
    f"an answer was refused: as JSON it has more than {MAX_JSON_PARTS} parts (MAX_JSON_PARTS, fixed; 200000 for a list of models); "
    "see what answers there",
)
MANY_CONNECTIONS = Limit(
    "MOST_CONNECTIONS",
    "a server was not asked: as many connections to servers are in use as three eighths of the limit of open files (MOST_CONNECTIONS); "
    "raise that limit (ulimit -n)",
)
PAGE_LIMITS = (LONG_PAGE, LONG_ANSWER, LONG_HEAD, MANY_HEADERS, MANY_CHUNKS, MANY_PARTS, MANY_CONNECTIONS)
"""Those of an answer, and of asking, for the `Limits` of who asks."""
