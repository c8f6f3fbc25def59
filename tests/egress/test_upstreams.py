"""Several servers of models: which one a request goes to, with which key, and what each of them lists."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from roost.domain.upstream import Upstream
from roost.egress.host import serving
from roost.egress.listing import ModelListFailed, UpstreamModelLists, models_at
from roost.egress.options import ModelUpstream, anthropic, openai
from roost.ports.egress import Credential, Origin
from tests.egress.both_sides import KEY, LOOPBACK, EgressSetup, Far, Inside, Seen, answer

OWN = "sk-own-0123456789-abcdefghijkl"


def served(name: str, models: Sequence[str], origin: Origin) -> ModelUpstream:
    return ModelUpstream(Upstream(name=name, api=origin.protocol, models=models), origin)


def keyed(far: Far, path: str, put: Any = "bearer") -> Origin:
    credential = Credential.fixed(f"sk-of-{path}-0123456789-0123456789", put)
    return Origin(url=f"{far.url}/{path}", protocol="anthropic", credential=credential)


def asked(seen: Seen) -> tuple[str, str | None, str | None]:
    return seen.target, seen.header("x-api-key"), seen.header("authorization")


def own(far: Far, secret: str = OWN, **changes: Any) -> Origin:
    """A server that a session brings, as a client has given its address."""
    fields: dict[str, Any] = {
        "url": f"{far.url}/own",
        "protocol": "anthropic",
        "credential": Credential.fixed(secret, "bearer"),
        "restricted": True,
    }
    return Origin(**fields | changes)


async def test_each_request_goes_to_the_first_server_that_serves_its_model_with_that_servers_key(
    egress_setup: EgressSetup,
):
    far = egress_setup.far
    upstreams = [
        served("small", ["claude-haiku-*"], keyed(far, "small")),
        served("gpt", ["*"], openai(far.url, SecretStr(KEY))),
        served("large", ["claude-opus-5-5", "claude-haiku-*"], keyed(far, "large", "x-api-key")),
    ]
    async with egress_setup.opened({"upstreams": upstreams}, model="claude-opus-5-5") as inside:
        for model in ("claude-haiku-1", "claude-opus-5-5", "claude-opus-5-5-20260101"):
            assert (await inside.ask(model=model)).status_code == 200
        refused = await inside.ask(model="llama")
        async with inside.model() as client:
            await client.get("/v1/models")
    assert [asked(seen) for seen in far.seen] == [
        ("/small/v1/messages", None, "Bearer sk-of-small-0123456789-0123456789"),
        ("/large/v1/messages", "sk-of-large-0123456789-0123456789", None),
        ("/large/v1/messages", "sk-of-large-0123456789-0123456789", None),
        ("/large/v1/models", "sk-of-large-0123456789-0123456789", None),
    ]
    assert [each.upstream for each in egress_setup.accounts] == ["small", *["large"] * 3]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "model_not_allowed")
    assert "'llama' is not served here" in error["message"]


async def test_a_session_that_brings_a_server_asks_it_for_every_model_and_no_other_session_does(
    egress_setup: EgressSetup,
):
    far = egress_setup.far
    upstreams = [served("operators", ["*"], keyed(far, "operators"))]
    async with (
        serving(egress_setup.options(upstreams=upstreams)) as egress,
        egress.open(egress_setup.grant(session_id="sesn_a", origins=[own(far)])) as brings,
        egress.open(egress_setup.grant(session_id="sesn_b")) as usual,
    ):
        for model in ("claude-x", "qwen"):
            for opened in (brings, usual):
                assert (await Inside(opened, egress).ask(model=model)).status_code == 200
    both = [
        ("/own/v1/messages", None, f"Bearer {OWN}"),
        ("/operators/v1/messages", None, "Bearer sk-of-operators-0123456789-0123456789"),
    ]
    assert [asked(seen) for seen in far.seen] == both * 2
    assert [each.upstream for each in egress_setup.accounts] == ["vault", "operators"] * 2


@pytest.mark.parametrize(
    ("networks", "url", "status", "said"),
    [
        (LOOPBACK, "", 200, ""),
        ((), "", 403, "is at an address that is not public"),
        ((ip_network("10.0.0.0/8"),), "", 403, "is at an address that is not public"),
        ((), "http://169.254.169.254", 403, "is at an address that is not public"),
        ((), "http://inside.test", 403, "is at an address that is not public"),
        (LOOPBACK, "http://0x7f000001", 400, "not an address"),
    ],
)
async def test_an_address_that_a_client_gave_is_held_against_the_rules_for_addresses(
    egress_setup: EgressSetup, networks: Any, url: str, status: int, said: str
):
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    origin = own(egress_setup.far, url=url or egress_setup.far.url)
    options = {"allow_networks": networks, "resolve": resolve}
    async with egress_setup.opened(options, origins=[origin]) as inside:
        answered = await inside.ask()
    assert (answered.status_code, said in answered.text) == (status, True), answered.text
    assert len(egress_setup.far.seen) == (status == 200)
    if status == 403:
        [refusal] = egress_setup.refusals
        assert refusal.reason == "address_not_allowed"
        assert refusal.host in url or refusal.host == "127.0.0.1"
        assert egress_setup.accounts[0].usage.input_tokens == 0


async def test_the_operators_own_servers_may_be_anywhere(egress_setup: EgressSetup):
    async with egress_setup.opened({"allow_networks": ()}) as inside:
        assert (await inside.ask()).status_code == 200


async def test_a_list_of_models_is_asked_for_with_the_key_and_cleaned_of_it(far: Far):
    key = "sk-0123456789-0123456789"
    listed = [
        {"id": "claude-x", "display_name": "X", "created_at": "2026-01-01T00:00:00Z"},
        {"id": "gpt", "created": 1767225600, "max_tokens": "many", "display_name": 7},
        {"id": f"echo-{key}"},
        {"id": ""},
        {"id": "x" * 300},
        "junk",
    ]
    far.reply = answer({"data": listed})
    found = await models_at(anthropic(far.url, SecretStr(key)))
    assert [(each.id, each.display_name, each.created_at) for each in found] == [
        ("claude-x", "X", "2026-01-01T00:00:00Z"),
        ("gpt", "", "2026-01-01T00:00:00Z"),
        (f"echo-{'*' * len(key)}", "", ""),
    ]
    await models_at(openai(f"{far.url}/v1", SecretStr(key)))
    assert [asked(seen) for seen in far.seen] == [
        ("/v1/models?limit=1000", key, None),
        ("/v1/models", None, f"Bearer {key}"),
    ]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"data": []}, 401, "does not take the key"),
        (b"x", 404, "no list of models"),
        (b"x", 200, "cannot be read"),
        ([1], 200, "cannot be read"),
        ({"data": None}, 200, "cannot be read"),
        (b"x" * 5_000_000, 200, "too long"),
    ],
)
async def test_a_server_without_a_list_of_models_is_no_failure(
    far: Far, body: Any, status: int, said: str
):
    far.reply = answer(body, status)
    origin = anthropic(far.url, SecretStr(KEY))
    with pytest.raises(ModelListFailed, match=said) as caught:
        await models_at(origin)
    assert KEY not in str(caught.value)
    assert await UpstreamModelLists([ModelUpstream.default(origin)]).listed("anthropic") == ()


async def test_a_server_is_asked_for_its_list_once_a_minute(far: Far):
    far.reply = answer({"data": [{"id": "m"}]})
    lists = UpstreamModelLists([ModelUpstream.default(anthropic(far.url, None))])
    for _ in range(3):
        assert [each.id for each in await lists.listed("anthropic")] == ["m"]
    assert len(far.seen) == 1
    lists._known["anthropic"] = (-1e9, ())
    await lists.listed("anthropic")
    assert len(far.seen) == 2
    assert msgspec.json.encode(await lists.listed("anthropic"))


async def test_a_short_key_of_a_vault_is_a_secret_and_a_stand_in_of_the_operator_is_none(
    egress_setup: EgressSetup,
):
    egress_setup.far.reply = answer({"error": "short-key1 is not known"})
    async with egress_setup.opened(origins=[own(egress_setup.far, "short-key1")]) as inside:
        assert (await inside.ask()).json() == {"error": "********** is not known"}
    stand_in = ModelUpstream.default(egress_setup.upstream(key="short-key1"))
    async with egress_setup.opened({"upstreams": [stand_in]}) as inside:
        assert (await inside.ask()).json() == {"error": "short-key1 is not known"}
