"""Objects in a bucket, of Amazon's or of any store that speaks its API.

Credentials, region and endpoint come from the usual `AWS_` variables. They stay in this process: nothing
in a sandbox talks to the store. Uploads carry a checksum, so that the store refuses what was spoilt on
the way; pointers are written with `If-Match` and `If-None-Match`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import obstore
from obstore import exceptions as trouble
from obstore.store import S3Store

from roost.errors import BlobChanged, BlobNotFound, BlobsFailed
from roost.ports.blobs import Pointer, Stored

_ONE_TRY: Final = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}


class S3Blobs:
    """`ports.blobs.Blobs`. Tries everything once: `steady` repeats.

    :param options: what `obstore` takes, over what the environment says
    """

    def __init__(
        self, bucket: str, prefix: str = "", *, timeout: float = 30.0, **options: str | bool
    ) -> None:
        config = {"checksum_algorithm": "SHA256", "conditional_put": "etag", **options}
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            config=config,  # type: ignore[arg-type]
            client_options={
                "timeout": timedelta(seconds=timeout),
                "connect_timeout": timedelta(seconds=5),
                "allow_http": True,
            },
            retry_config=_ONE_TRY,  # type: ignore[arg-type]
        )

    async def put(self, key: str, data: bytes) -> None:
        with _explained(key):
            await obstore.put_async(self._store, key, data, use_multipart=False)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with _explained(key):
            if end is not None:
                ranged = await obstore.get_range_async(self._store, key, start=start, end=end)
                return ranged.to_bytes()
            options = {"range": {"offset": start}} if start else {}
            found = await obstore.get_async(self._store, key, options=options)  # type: ignore[arg-type]
            return (await found.bytes_async()).to_bytes()

    async def list(self, prefix: str) -> Sequence[Stored]:
        # The driver lists whole folders; what only begins like the prefix is sorted out here.
        folder = prefix.rpartition("/")[0]
        found = []
        with _explained(prefix):
            async for batch in obstore.list(self._store, folder or None):
                found += [Stored(meta["path"], meta["size"]) for meta in batch]
        return [stored for stored in found if stored.key.startswith(prefix)]

    async def delete(self, keys: Sequence[str]) -> None:
        with _explained(", ".join(keys[:3])):
            await obstore.delete_async(self._store, list(keys))

    async def read(self, key: str) -> Pointer | None:
        try:
            with _explained(key):
                found = await obstore.get_async(self._store, key)
                data = (await found.bytes_async()).to_bytes()
        except BlobNotFound:
            return None
        return Pointer(data, found.meta["e_tag"] or "")

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        with _explained(key):
            mode = "create" if version is None else {"e_tag": version}
            written = await obstore.put_async(
                self._store,
                key,
                data,
                mode=mode,  # type: ignore[arg-type]
                use_multipart=False,
            )
        return written["e_tag"] or ""


@contextmanager
def _explained(key: str) -> Iterator[None]:
    try:
        yield
    except (trouble.NotFoundError, FileNotFoundError):
        raise BlobNotFound(f"there is no object {key}") from None
    except (trouble.AlreadyExistsError, trouble.PreconditionError):
        raise BlobChanged(f"the pointer {key} was changed by somebody else") from None
    except (trouble.BaseError, OSError, ValueError) as error:
        raise BlobsFailed(f"{key}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
