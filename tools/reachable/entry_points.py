"""Makes the plugins of the runs known to `endpick`, as an installed distribution would."""

from __future__ import annotations

import re
from pathlib import Path

from endpick.api import Plugin
from endpick.plugins.kinds import kinds_of
from reachable import plugins

VENDOR = "reach"


def install(folder: Path) -> None:
    """Write the metadata of a distribution that offers them; `folder` and that of this package belong on PYTHONPATH."""
    offered = {
        name: member
        for name, member in vars(plugins).items()
        if isinstance(member, type) and issubclass(member, Plugin) and kinds_of(member) and member.__module__ == plugins.__name__
    }
    lines = ["[endpick.plugins.v1]"]
    lines += [f"{VENDOR}.{re.sub(r'(?<!^)(?=[A-Z])', '-', name).lower()} = {plugins.__name__}:{name}" for name in offered]
    lines += ["", "[endpick.hooks.v1]", f"{VENDOR}.hooks = {plugins.__name__}:{plugins.Hooks.__name__}", ""]
    metadata = folder / f"{VENDOR}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {VENDOR}\nVersion: 1.0\nRequires-Dist: endpick\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
