"""Programs of this checkout that another user is to run.

Root's home is private on most distributions, so a checkout below it cannot be reached by the users that root
drops to.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


def reachable(path: Path, package: Path) -> Path:
    """Something of a package where every user can get to it: `path` itself, or its like in a copy of the
    package that lasts as long as this process."""
    if all(above.stat().st_mode & 0o001 for above in path.absolute().parents):
        return path
    return _copied(package) / path.relative_to(package.parent)


@cache
def _copied(package: Path) -> Path:
    """A folder that has the package, and beside it the libraries that its programs look for there."""
    # Not in /dev/shm: in a container, nothing there can be executed.
    folder = Path(tempfile.mkdtemp(prefix="roost-programs-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / source.name, symlinks=True)
    return folder
