"""Host hooks: what an extension object may do at the edges of the host's life (pluggy; never on the request path)."""

from __future__ import annotations

import pluggy

PROJECT_NAME = "endpick"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Mark a method of a hook object: `@hookimpl`. Import it from `endpick.api`."""
