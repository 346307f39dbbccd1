"""The plugins that a page lets its reader write, as the distribution `docs-page` with one entry point each."""

from __future__ import annotations

import re
from pathlib import Path

from docs.pages import Block, blocks

DISTRIBUTION = "docs-page"
_PLUGIN = re.compile(r"^class (\w+)\([^\n]*\):\n(?:(?!^class ).*\n)*?    meta = PluginMeta\(\s*type=\"([\w.-]+)\"", re.MULTILINE)


def modules_of(page: Path) -> dict[str, str]:
    """The modules in the root of the reader's project: name to source."""
    files = [block for block in blocks(page) if block.language == "python" and block.file and "/" not in block.file]
    return {block.file.removesuffix(".py"): block.text for block in files}


def entry_points_of(page: Path) -> dict[str, str]:
    """Plugin type to target, for every plugin class in them."""
    return {plugin_type: f"{module}:{name}" for module, source in modules_of(page).items() for name, plugin_type in _PLUGIN.findall(source)}


def needs_page(block: Block) -> bool:
    """Whether a block is to be read with the page's own plugins installed."""
    return block.mark == "with page"
