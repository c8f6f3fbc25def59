"""Which store a URL means."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from roost.blobs.folder import FolderBlobs
from roost.blobs.s3 import S3Blobs
from roost.blobs.steady import SteadyBlobs
from roost.config import Settings
from roost.errors import StartupError
from roost.ports.blobs import Blobs


def folder_of(settings: Settings) -> Path | None:
    """The folder of this machine that it means, if it means one."""
    if settings.blobs_url is None:
        return settings.data.absolute() / "blobs"
    parts = _parts(settings.blobs_url)
    if parts.scheme == "file" and not parts.netloc and parts.path not in ("", "/"):
        return Path(parts.path)
    return None


def chosen(settings: Settings) -> Blobs:
    """The store of `ROOST_BLOBS_URL`; a folder in the data directory if it is not set.

    :raises StartupError: there is no such store
    """
    url = settings.blobs_url
    if (folder := folder_of(settings)) is not None:
        return SteadyBlobs(FolderBlobs(folder, least_free=settings.min_free_disk << 20))
    parts = _parts(url or "")
    if parts.scheme == "s3" and parts.netloc:
        return SteadyBlobs(S3Blobs(parts.netloc, parts.path.strip("/")))
    raise StartupError(
        f"ROOST_BLOBS_URL: {url!r} is not a store this version knows",
        hint="It knows file:///PATH and s3://BUCKET/PREFIX.",
    )


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")  # which no store has
