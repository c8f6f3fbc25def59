"""Adapters that drive agents: one folder for each kind, and what several of them share.

Kinds of harnesses are found by name in `HARNESSES`. A factory is given a `HarnessContext` and makes the
harnesses of its kind: mostly one, of the same name, or one for each agent that the settings name. It does
not look at the machine: whether a harness can be used here, `Harness.check` says. Settings that it does not
understand are a `StartupError`, and no server starts. Packages add their own
by entry points of the group `roost.harnesses`; CONTRIBUTING has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from pydantic import SecretStr

from roost.config import Settings
from roost.ports.egress import Origin
from roost.ports.harness import Harness
from roost.registry import Registry


class ModelAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model's API is, and the key to it. The key never leaves the server's process."""

    url: str
    key: SecretStr | None = None


class HarnessContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the factory of a harness is given. `upstreams` are the model APIs, by the names that
    `HarnessProfile.upstream` uses; an agent in a sandbox reaches its own by the egress and needs none.
    Where there are several servers of one API it is the first; `origin_of` says for an API and a model which
    one it is, and raises `ModelNotServed` if it is none.
    """

    settings: Settings
    upstreams: Mapping[str, ModelAddress]
    origin_of: Callable[[str, str], Origin]


HarnessFactory = Callable[[HarnessContext], Sequence[Harness]]

HARNESSES: Final = Registry[HarnessFactory](
    "harness",
    "roost.harnesses",
    {
        "claude": "roost.harnesses.claude:make",
        "codex": "roost.harnesses.codex:make",
        "messages": "roost.harnesses.messages:make",
        "acp": "roost.harnesses.acp:make",
        "code": "roost.harnesses.code:make",
        "scripted": "roost.harnesses.scripted:make",
    },
)

WITH_A_KEY: Final = "claude"
"""The harness of sessions that name none, where there is a key for the model."""

WITHOUT_A_KEY: Final = "scripted"
"""The harness of sessions that name none, where there is no key: it needs nothing but a model."""
