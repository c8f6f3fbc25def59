"""Where the command line meets the environment: the one place in it that reads `os.environ`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from roost.cli.client import ApiClient
from roost.config import Settings


def settings(**flags: object) -> Settings:
    """The settings, with the flags that were given on top. :raises StartupError:"""
    return Settings.read(os.environ, **flags)


def connect(url: str | None) -> ApiClient:
    """A client for the server that the flag, the environment or the data directory names."""
    found = settings(url=url)
    return ApiClient(server_url(found), api_key(found))


def server_url(found: Settings) -> str:
    """`--url` or `$ROOST_URL`; else where the server of the data directory said that it listens."""
    if found.url is not None:
        return found.url.rstrip("/")
    said = _json_in(found.data / "server.json").get("url")
    return said if isinstance(said, str) else f"http://{found.host}:{found.port}"


def running(found: Settings) -> dict[str, Any]:
    """What the server of the data directory says about itself, if it runs and is the one that is meant."""
    said = _json_in(found.data / "server.json")
    ours = found.url is None or found.url.rstrip("/") == said.get("url")
    return said if ours and Path(f"/proc/{said.get('pid')}").exists() else {}


def is_local(url: str | None) -> bool:
    """Whether the server is the one of the data directory, and no load balancer stands before it."""
    return settings(url=url).url is None


def api_key(found: Settings) -> str | None:
    """`$ROOST_API_KEY`, else the administrator's key in the data directory, if it can be read."""
    if found.api_key is not None:
        return found.api_key.get_secret_value()
    try:
        return (found.data / "keys" / "admin.key").read_text().strip()
    except OSError:
        return None


def environment_key() -> str | None:
    """The key of a self-hosted environment, by the name that the official workers read it by."""
    return os.environ.get("ANTHROPIC_ENVIRONMENT_KEY") or None


def _json_in(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
