"""Opening and closing: sockets, generations, starts and stops."""

from __future__ import annotations

import socket
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec
import pytest
from pydantic import SecretStr

from roost.egress.host import serving
from roost.egress.options import ModelUpstream, anthropic, openai
from roost.egress.unix import UnixStream, accept
from roost.errors import LeaseLost, StartupError, Unavailable
from roost.ports.egress import Credential, Egress, Networking, Origin
from roost.testing.cancelling import cancelled_at_each_step
from tests.egress.both_sides import (
    KEY,
    QUICK,
    EgressSetup,
    Inside,
    answer,
    connect,
    message,
    repository,
    rest,
)

BOTH = Networking(kind="unrestricted")


async def test_only_the_server_reaches_the_sockets_and_whoever_is_given_one(
    egress_setup: EgressSetup,
):
    async with egress_setup.opened(networking=BOTH) as inside:
        place = Path(inside.path("model.sock")).parent
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE(egress_setup.directory.stat().st_mode) == 0o700
        for name in ("model.sock", "proxy.sock"):
            assert stat.S_IMODE((place / name).stat().st_mode) == 0o666
        assert "sesn_1" not in str(place)
    assert list(egress_setup.directory.iterdir()) == []


async def test_what_comes_to_a_port_is_carried_like_the_rest_until_the_grant_ends(
    egress_setup: EgressSetup,
):
    asked, late = socket.socketpair(), socket.socketpair()
    bounds = msgspec.structs.replace(QUICK, connections=1)
    async with serving(egress_setup.options(bounds=bounds)) as egress:
        async with egress.open(egress_setup.grant(networking=Networking(kind="limited"))) as way:
            (take,) = [each.take for each in way.endpoints if each.port is not None]
            assert take is not None
            await take(asked[0])
            async with UnixStream(asked[1]) as stream:
                await stream.send(b"CONNECT a.example:80 HTTP/1.1\r\nhost: a.example\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 403")
        await take(late[0])
        async with UnixStream(late[1]) as stream:
            assert await rest(stream) == b""


async def test_a_long_path_is_no_obstacle(egress_setup: EgressSetup):
    egress_setup.directory = egress_setup.directory / ("d" * 60) / ("e" * 60)
    async with egress_setup.opened() as inside:
        assert len(inside.path("model.sock")) > 108
        short = egress_setup.directory.parent.parent.parent / "s"
        short.symlink_to(Path(inside.path("model.sock")).parent)
        async with await connect(str(short / "model.sock")) as stream:
            await stream.send(message(b'{"model":"m"}', "connection: close"))
            assert (await rest(stream)).startswith(b"HTTP/1.1 200")
        short.unlink()


async def test_what_a_killed_process_left_is_removed_and_nothing_else(egress_setup: EgressSetup):
    stale = egress_setup.directory / "stale"
    stale.mkdir(parents=True)
    (stale / "model.sock").touch()
    other = egress_setup.directory / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    (egress_setup.directory / "link").symlink_to(other)
    async with serving(egress_setup.options()):
        assert sorted(path.name for path in egress_setup.directory.iterdir()) == ["link", "other"]


async def test_a_newer_generation_ends_the_older_one(egress_setup: EgressSetup):
    async with (
        serving(egress_setup.options()) as egress,
        egress.open(egress_setup.grant(generation=1)) as first,
    ):
        async with (
            await connect(str(first.endpoints[0].address.path)) as old,
            egress.open(egress_setup.grant(generation=2)) as second,
        ):
            assert await rest(old) == b""
            assert not first.endpoints[0].address.path.exists()
            assert second.endpoints[0].address.path.exists()
        assert not second.endpoints[0].address.path.exists()


@pytest.mark.parametrize("generation", [1, 2])
async def test_an_older_generation_is_refused(egress_setup: EgressSetup, generation: int):
    async with serving(egress_setup.options()) as egress:
        async with egress.open(egress_setup.grant(generation=2)) as opened:
            with pytest.raises(LeaseLost):
                async with egress.open(egress_setup.grant(generation=generation)):
                    pass
            assert opened.endpoints[0].address.path.exists()
        async with egress.open(egress_setup.grant(generation=2)):
            pass


async def test_two_sessions_do_not_share_anything(egress_setup: EgressSetup):
    async with serving(egress_setup.options()) as egress:
        async with (
            egress.open(egress_setup.grant(session_id="sesn_1")) as one,
            egress.open(egress_setup.grant(session_id="sesn_2")) as two,
        ):
            assert one.endpoints[0].address.path.parent != two.endpoints[0].address.path.parent
        assert list(egress_setup.directory.iterdir()) == []


async def test_an_unknown_api_is_refused_before_anything_is_made(egress_setup: EgressSetup):
    async with serving(egress_setup.options()) as egress:
        with pytest.raises(Unavailable, match="nobody"):
            async with egress.open(egress_setup.grant(api="nobody")):
                pass
        async with egress.open(egress_setup.grant()):
            pass


async def test_sockets_that_cannot_be_made_fail_one_session_and_not_the_others(
    egress_setup: EgressSetup,
):
    async with (
        serving(egress_setup.options()) as egress,
        egress.open(egress_setup.grant(session_id="sesn_2")) as other,
    ):
        moved = egress_setup.directory.with_name("moved")
        egress_setup.directory.rename(moved)
        with pytest.raises(Unavailable, match="cannot be made"):
            async with egress.open(egress_setup.grant()):
                pass
        moved.rename(egress_setup.directory)
        async with (
            egress.open(egress_setup.grant()),
            await connect(str(other.endpoints[0].address.path)),
        ):
            pass


async def test_a_body_that_fails_closes_its_grant(egress_setup: EgressSetup):
    async with serving(egress_setup.options()) as egress:
        with pytest.raises(RuntimeError, match="mine"):
            async with egress.open(egress_setup.grant()):
                raise RuntimeError("mine")
        assert list(egress_setup.directory.iterdir()) == []


async def test_a_runner_that_is_cancelled_leaves_nothing(egress_setup: EgressSetup):
    async with serving(egress_setup.options()) as egress:
        for delay in (0, 0.001, 0.02):
            with anyio.move_on_after(delay):
                async with egress.open(egress_setup.grant()):
                    await anyio.sleep_forever()
            assert list(egress_setup.directory.iterdir()) == []


async def test_stopping_the_server_closes_every_grant(egress_setup: EgressSetup):
    async with anyio.create_task_group() as tasks:
        async with serving(egress_setup.options()) as egress:

            async def hold(number: int) -> None:
                async with egress.open(egress_setup.grant(session_id=f"sesn_{number}")):
                    await anyio.sleep_forever()

            for number in range(5):
                tasks.start_soon(hold, number)
            await egress_setup.until(lambda: len(list(egress_setup.directory.iterdir())) == 5)
        assert list(egress_setup.directory.iterdir()) == []
        tasks.cancel_scope.cancel()


async def test_a_mistake_of_ours_drops_one_connection_only(
    egress_setup: EgressSetup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with egress_setup.opened() as inside:
        with monkeypatch.context() as patch:
            patch.setattr("roost.egress.dialects.ModelRules.head", broken)
            assert await inside.raw(message()) == b""
        assert (await inside.ask()).status_code == 200
    assert "a connection was dropped" in caplog.text


async def test_a_moment_without_descriptors_is_survived(
    egress_setup: EgressSetup, monkeypatch: pytest.MonkeyPatch
):
    failures = [OSError(24, "Too many open files")] * 2

    async def scarce(bound: socket.socket) -> UnixStream:
        if failures:
            raise failures.pop()
        return await accept(bound)

    monkeypatch.setattr("roost.egress.host.accept", scarce)
    async with egress_setup.opened() as inside:
        assert (await inside.ask()).status_code == 200
    assert failures == []


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "sch\u00f6n"])
async def test_a_key_that_no_header_carries_stops_the_start_without_being_shown(
    egress_setup: EgressSetup, key: str
):
    upstream = anthropic("http://x.example", SecretStr(key))
    with pytest.raises(StartupError) as caught:
        async with serving(egress_setup.options(upstreams=[ModelUpstream.default(upstream)])):
            pass
    assert not key or key not in str(caught.value)


async def test_an_address_that_is_none_stops_the_start(egress_setup: EgressSetup):
    upstream = anthropic("api.example.com", None)
    with pytest.raises(StartupError, match="http://"):
        async with serving(egress_setup.options(upstreams=[ModelUpstream.default(upstream)])):
            pass


async def test_a_directory_that_cannot_be_made_stops_the_start(egress_setup: EgressSetup):
    egress_setup.directory.parent.joinpath("file").touch()
    egress_setup.directory = egress_setup.directory.parent / "file" / "run"
    with pytest.raises(StartupError, match="cannot hold"):
        async with serving(egress_setup.options()):
            pass


async def test_without_a_key_none_is_put_on(egress_setup: EgressSetup):
    upstream = egress_setup.upstream(key=None)
    async with egress_setup.opened({"upstreams": [ModelUpstream.default(upstream)]}) as inside:
        assert (await inside.ask()).status_code == 200
    assert egress_setup.far.seen[0].header("x-api-key") is None


async def test_a_short_stand_in_for_a_key_does_not_damage_answers(egress_setup: EgressSetup):
    egress_setup.far.reply = answer({"text": "the none of it"})
    upstream = egress_setup.upstream(key="none")
    async with egress_setup.opened({"upstreams": [ModelUpstream.default(upstream)]}) as inside:
        assert (await inside.ask()).json() == {"text": "the none of it"}


def test_the_adapter_is_what_the_port_asks_for_and_shows_no_key():
    from roost.egress.host import HostEgress

    _: type[Egress] = HostEgress
    for make in (anthropic, openai):
        upstream = make("https://api.example", SecretStr(KEY))
        assert KEY not in repr(upstream)
        assert KEY not in str(msgspec.structs.asdict(upstream))


async def test_no_two_sessions_share_a_connection_to_a_server(egress_setup: EgressSetup):
    """Also if the first has left its connection free, and also for git: nothing can be left for another."""
    far = egress_setup.far
    origins = [repository(f"{far.url}/a")]
    async with serving(egress_setup.options()) as egress, AsyncExitStack() as stack:
        for number in range(3):
            grant = egress_setup.grant(session_id=f"sesn_{number}", origins=origins)
            inside = Inside(await stack.enter_async_context(egress.open(grant)), egress)
            before = far.connections
            for _ in range(2):
                await inside.ask()
            assert far.connections == before + 1
        assert far.open == 3
    await egress_setup.until(lambda: far.open == 0)


async def test_cancelled_anywhere_an_opened_grant_leaves_nothing(egress_setup: EgressSetup):
    async with serving(egress_setup.options()) as egress:

        async def work() -> None:
            async with egress.open(egress_setup.grant()) as opened:
                await Inside(opened, egress).ask()

        async for step in cancelled_at_each_step(work):
            assert egress._opened == {}, f"step {step}"
            assert list(egress_setup.directory.iterdir()) == [], f"step {step}"
            await egress_setup.until(lambda: egress_setup.far.open == 0)


@pytest.mark.parametrize(
    "url",
    [
        *("http://a.example:port", "http://a.example:99999", "http://999.1.1.1", "http://[::1"),
        *(
            "http://user:secret@a.example",
            "http://a.example/?x=y",
            "http://a.example/v1?",
            "http://",
        ),
        *(
            "http://b\u00fccher.example",
            "http://a.example/#x",
            "http://evil[::1]",
            "ftp://a.example",
        ),
    ],
)
async def test_a_malformed_address_of_a_model_stops_the_start_with_a_hint(
    egress_setup: EgressSetup, url: str
):
    upstream = egress_setup.upstream(url)
    with pytest.raises(StartupError, match="the address of 'anthropic'") as caught:
        async with serving(egress_setup.options(upstreams=[ModelUpstream.default(upstream)])):
            pass
    assert caught.value.hint
    assert "secret" not in str(caught.value)


async def test_a_package_host_that_is_none_stops_the_start(egress_setup: EgressSetup):
    with pytest.raises(StartupError, match=r"ROOST_PACKAGE_HOSTS: 'pypi\.\.org'"):
        async with serving(egress_setup.options(package_hosts=["*.good.example", "pypi..org"])):
            pass


@pytest.mark.parametrize("odd", ["\t", "\n", "\r\n", "\0", " ", "\x7f", "\u2028"])
async def test_an_address_with_a_control_character_stops_the_start(
    egress_setup: EgressSetup, odd: str
):
    upstream = egress_setup.upstream(f"http://a{odd}b.example")
    with pytest.raises(StartupError, match="control character"):
        async with serving(egress_setup.options(upstreams=[ModelUpstream.default(upstream)])):
            pass


async def test_a_session_with_a_model_of_its_own_does_not_get_the_operators(
    egress_setup: EgressSetup,
):
    """Its own address and key, and nobody else's: another session beside it has the operator's."""
    mine = anthropic(f"{egress_setup.far.url}/mine", SecretStr("sk-mine-0123456789-abcdefgh"))
    async with (
        serving(egress_setup.options()) as egress,
        egress.open(egress_setup.grant(origins=[mine])) as own,
        egress.open(egress_setup.grant(session_id="sesn_2")) as usual,
    ):
        for opened in (own, usual):
            assert (await Inside(opened, egress).ask()).status_code == 200
    asked = [(seen.target, seen.header("x-api-key")) for seen in egress_setup.far.seen]
    assert asked == [("/mine/v1/messages", "sk-mine-0123456789-abcdefgh"), ("/v1/messages", KEY)]


async def test_a_secret_that_is_replaced_is_used_and_left_out_from_then_on(
    egress_setup: EgressSetup,
):
    now = ["sk-old-0123456789-abcdefgh"]

    async def secret() -> str:
        return now[0]

    egress_setup.far.reply = answer(b"sk-old-0123456789-abcdefgh sk-new-0123456789-abcdefgh")
    origin = Origin(
        url=egress_setup.far.url, protocol="anthropic", credential=Credential(secret, "bearer")
    )
    async with egress_setup.opened(origins=[origin]) as inside:
        first = (await inside.ask()).text
        now[0] = "sk-new-0123456789-abcdefgh"
        second = (await inside.ask()).text
    assert [seen.header("authorization") for seen in egress_setup.far.seen] == [
        "Bearer sk-old-0123456789-abcdefgh",
        "Bearer sk-new-0123456789-abcdefgh",
    ]
    assert (
        first == "*" * 26 + " sk-new-0123456789-abcdefgh"
    )  # of what it is to be, nobody knows yet
    assert second == "*" * 26 + " " + "*" * 26  # what it was before may still be of use


async def test_a_secret_that_no_header_can_carry_is_quoted_nowhere(egress_setup: EgressSetup):
    origin = Origin(
        url=egress_setup.far.url,
        protocol="anthropic",
        credential=Credential.fixed("sk-1\r\n2", "bearer"),
    )
    async with egress_setup.opened(origins=[origin]) as inside:
        refused = await inside.ask()
    assert (refused.status_code, "cannot be sent" in refused.text) == (502, True)
    assert "sk-1" not in refused.text
    assert egress_setup.far.seen == []
    assert [(account.status, account.usage.input_tokens) for account in egress_setup.accounts] == [
        (502, 0)
    ]
