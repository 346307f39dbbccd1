"""`passthrough-parser`: forwards any body unread."""

from __future__ import annotations

from collections.abc import Mapping

from endpick.api import ParsedRequest, Parser, PluginMeta, Rejection


class PassthroughParser(Parser):
    """Takes every path that no other parser claims. Nothing is known of the request: no model, no prompt, no usage.

    Parsers configured behind it are never asked.
    """

    meta = PluginMeta(type="passthrough-parser", api=">=1.0,<2")

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Accept it as it is."""
        return ParsedRequest(needs_model=False)
