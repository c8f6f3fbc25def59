"""Which store a URL means."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from roost.blobs.folder import FolderBlobs
from roost.blobs.s3 import S3Blobs
from roost.blobs.steady import SteadyBlobs
from roost.config import Settings
from roost.errors import StartupError
from roost.ports.blobs import Blobs


def chosen(settings: Settings) -> Blobs:
    """The store of `ROOST_BLOBS_URL`; a folder in the data directory if it is not set.

    :raises StartupError: there is no such store
    """
    url = settings.blobs_url
    if url is None:
        return SteadyBlobs(FolderBlobs(settings.data.absolute() / "blobs"))
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path not in ("", "/"):
        return SteadyBlobs(FolderBlobs(Path(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return SteadyBlobs(S3Blobs(parts.netloc, parts.path.strip("/")))
    raise StartupError(
        f"ROOST_BLOBS_URL: {url!r} is not a store this version knows",
        hint="It knows file:///PATH and s3://BUCKET/PREFIX.",
    )
