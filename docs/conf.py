"""How Sphinx builds these pages: `make docs`."""

from endpick import __version__

project = "endpick"
author = "The endpick authors"
release = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"endpick {release}"
html_show_sourcelink = False
html_copy_source = False
