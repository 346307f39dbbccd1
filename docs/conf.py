"""How Sphinx builds these pages: `make docs`."""

import tomllib
from pathlib import Path

project = "endpick"
author = "The endpick authors"
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"endpick {release}"
html_show_sourcelink = False
html_copy_source = False
