"""reference/admin-api.md: the paths of the admin API."""

from __future__ import annotations

from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from endpick.serve.admin_api import ROUTES
from endpick.serve.hook_objects import HistoryPages


class _Pages:
    """Routes and pages of the host."""

    def __init__(self) -> None:
        self.rows = [(route.path, route.summary, route.query) for route in ROUTES]

    def add(self, path: str, summary: str, _answer: object) -> None:
        self.rows.append((path, summary, {}))


def page() -> str:
    """The page."""
    pages = _Pages()
    HistoryPages(tuple).endpick_admin_pages(pages)
    return markdown_page(
        "Admin API",
        "`endpick serve` answers these paths with JSON on its metrics port. All are read-only. By default only loopback clients are "
        "answered; with `--admin-token-file`, every client that sends `Authorization: Bearer TOKEN`. [Debug](../how-to/debug.md) shows the "
        "verbs that read them: `endpick why`, `endpick try --from` and `endpick bundle`.",
        table(("path", "answer", "query"), (_row(*row) for row in pages.rows)),
        "Installed distributions may add pages by the hook [`endpick_admin_pages`](hooks.md); `/openapi.json` lists them.",
        "`endpick schema decision` prints the JSON Schema of a decision. Secrets in configurations are masked: parameters that the plugin "
        "declares as secret, or whose names end in `token`, `password`, `secret` or `key`. Prompts and answers are never recorded.",
    )


def _row(path: str, summary: str, query: dict[str, str]) -> tuple[str, str, str]:
    return code(path), summary, "; ".join(f"{code(name)}: {text}" for name, text in query.items())
