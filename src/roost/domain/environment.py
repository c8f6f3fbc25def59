"""An environment's configuration: from what a client sends to the fully resolved body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from roost.domain import address, packages
from roost.domain.agent import merged
from roost.domain.session import ON_HOST, MountScope, TrustLevel
from roost.errors import ConfigTypeChanged, FieldNotServed, InvalidRequest

Body = dict[str, Any]

RESERVED: Final = "roost."
"""Metadata keys that begin so are for this server: they say what the API has no field for."""

_CHOICES: Final = {"trust_level": get_args(TrustLevel), "mount_scope": get_args(MountScope)}
_DEFAULTS: Final = (*_CHOICES, "sandbox_fallback")
_OWN: Final = {"packages_failed": ("wait", "continue")}
_UNRESTRICTED = {"type": "unrestricted"}


class EnvironmentChoices(NamedTuple):
    """What environments may name of this server: sandboxes that sessions may fall back to, and images."""

    sandboxes: Sequence[str]
    images: Sequence[str] = ()


def created(params: Mapping[str, Any], choices: EnvironmentChoices) -> Body:
    """The body of a new environment.

    :raises InvalidRequest: naming the field
    """
    config = _config(params.get("config") or {"type": "cloud"}, None)
    return {
        "name": params["name"],
        "description": params.get("description"),
        "config": config,
        "metadata": _checked(dict(params.get("metadata") or {}), choices, config),
        "scope": _scope(params.get("scope")),
    }


def updated(body: Body, params: Mapping[str, Any], choices: EnvironmentChoices) -> Body:
    """The body after an update: what is omitted or null stays, metadata is merged.

    :raises ConfigTypeChanged: a cloud environment cannot become a self-hosted one, nor back
    :raises InvalidRequest: naming the field
    """
    after = dict(body)
    if params.get("name") is not None:
        after["name"] = params["name"]
    if "description" in params:
        after["description"] = params["description"]
    if params.get("config") is not None:
        after["config"] = _config(params["config"], body["config"])
    if params.get("scope") is not None:
        after["scope"] = _scope(params["scope"])
    metadata = merged(body["metadata"], params.get("metadata"), empty_deletes=True)
    after["metadata"] = _checked(metadata, choices, after["config"])
    return after


def defaults_of(body: Mapping[str, Any]) -> Body:
    """What sessions of an environment get that do not say otherwise: its reserved metadata."""
    metadata: Mapping[str, str] = body.get("metadata") or {}
    noted = {name: metadata.get(RESERVED + name) for name in _DEFAULTS}
    return {name: value for name, value in noted.items() if value is not None}


def goes_on_without_packages(body: Mapping[str, Any]) -> bool:
    """Whether its sessions are to work without packages that cannot be installed."""
    return bool((body.get("metadata") or {}).get(f"{RESERVED}packages_failed") == "continue")


def image_of(body: Mapping[str, Any]) -> str | None:
    """The operator's name of the image that its sandboxes are made of; None: the usual one."""
    image: str | None = (body.get("metadata") or {}).get(f"{RESERVED}image")
    return image


def _checked(metadata: dict[str, str], choices: EnvironmentChoices, config: Body) -> dict[str, str]:
    fallbacks = (*choices.sandboxes, *ON_HOST)
    known = _CHOICES | _OWN | {"sandbox_fallback": fallbacks, "image": choices.images}
    if config["type"] == "self_hosted" and image_of({"metadata": metadata}) is not None:
        raise InvalidRequest(
            f"metadata.{RESERVED}image: the sandboxes of a self-hosted environment are its workers'"
        )
    for key, value in metadata.items():
        name = key.removeprefix(RESERVED)
        if name == key:
            continue
        if name not in known:
            raise InvalidRequest(f"metadata.{key}: unknown; `{RESERVED}` is reserved")
        if not known[name]:
            raise InvalidRequest(
                f"metadata.{key}: this server has no images to choose from",
                hint="The operator names them with ROOST_DOCKER_IMAGES, for sandboxes that are containers.",
            )
        if value not in known[name]:
            expected = " or ".join(repr(choice) for choice in known[name])
            raise InvalidRequest(f"metadata.{key}: Input should be {expected}")
    return metadata


def _scope(scope: str | None) -> str:
    if scope == "account":
        raise FieldNotServed("scope: only 'organization' is served")
    return "organization"


def _config(given: Body, before: Body | None) -> Body:
    if before is not None and before["type"] != given["type"]:
        raise ConfigTypeChanged(
            f"config.type: a {before['type']} environment cannot become {given['type']}"
        )
    if given["type"] == "self_hosted":
        return {"type": "self_hosted"}
    before = before or {"networking": _UNRESTRICTED, "packages": packages.NONE}
    networking = _networking(given.get("networking"), before["networking"])
    wanted = packages.checked(given.get("packages") or {}, before["packages"])
    _check_reach(networking, packages.installations(wanted))
    return {"type": "cloud", "networking": networking, "packages": wanted}


def _networking(given: Body | None, before: Body) -> Body:
    if given is None:
        return before
    if given["type"] == "unrestricted":
        return dict(_UNRESTRICTED)
    kept = before if before["type"] == "limited" else {}
    after = {"type": "limited"} | {
        field: kept.get(field, default) if given.get(field) is None else given[field]
        for field, default in _LIMITED.items()
    }
    for i, host in enumerate(after["allowed_hosts"]):
        address.check_pattern(host, f"config.networking.allowed_hosts.{i}")
    return after


_LIMITED: dict[str, Any] = {
    "allowed_hosts": [],
    "allow_mcp_servers": False,
    "allow_package_managers": False,
}


def _check_reach(networking: Body, wanted: Sequence[packages.InstallStep]) -> None:
    if wanted and networking["type"] == "limited" and not networking["allow_package_managers"]:
        raise InvalidRequest(
            f"config.packages.{wanted[0].manager}: packages need `allow_package_managers` where networking is "
            "limited"
        )
