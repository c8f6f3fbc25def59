"""Whatever is sent: an answer or none, the connection closed, and the next client served."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.egress.secrets import Redactor
from roost.ports.egress import Networking
from tests.egress.both_sides import KEY, EgressSetup, Far, connect

TOKENS = st.sampled_from(
    [
        b"POST ",
        b"GET ",
        b"CONNECT ",
        b"/v1/messages ",
        b"a.example:443 ",
        b"http://a.example/ ",
        b"HTTP/1.1\r\n",
        b"HTTP/1.0\r\n",
        b"host: x\r\n",
        b"content-length: 5\r\n",
        b"content-length: 99999999999999999999\r\n",
        b"content-length: -1\r\n",
        b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: gzip\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\n",
        b"connection: upgrade\r\n",
        b"\r\n",
        b"\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b'{"model":"m"}',
        b"\x00",
        b": ",
    ]
)
DATA = st.one_of(
    st.binary(max_size=300),
    st.lists(st.one_of(TOKENS, st.binary(max_size=8)), max_size=20).map(b"".join),
)


@pytest.mark.parametrize("name", ["model.sock", "proxy.sock"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(messages=st.lists(DATA, min_size=1, max_size=8))
async def test_nothing_that_is_sent_breaks_the_server(
    name: str, messages: list[bytes], caplog: pytest.LogCaptureFixture
):
    caplog.clear()
    networking = Networking(kind="limited", allowed_hosts=["b.example"])
    with tempfile.TemporaryDirectory(prefix="egress-") as directory:
        async with Far().listening() as far:
            egress_setup = EgressSetup(far, Path(directory) / "run")
            async with egress_setup.opened(networking=networking) as inside:
                for data in messages:
                    async with await connect(inside.path(name)) as stream:
                        await _send_all(stream, data)
                        await _closed(stream)
                assert (await inside.ask()).status_code == 200
    assert "dropped" not in caplog.text


async def _send_all(stream: anyio.abc.ByteStream, data: bytes) -> None:
    try:
        await stream.send(data)
        await stream.send_eof()
    except anyio.BrokenResourceError:
        return


async def _closed(stream: anyio.abc.ByteStream) -> None:
    with anyio.fail_after(60):
        try:
            while True:
                await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.just(KEY.encode()),
            st.integers(0, len(KEY)).map(lambda n: KEY[:n].encode()),
            st.integers(0, len(KEY)).map(lambda n: KEY[n:].encode()),
        ),
        max_size=12,
    )
)
def test_a_redacted_stream_has_no_key_keeps_its_length_and_holds_back_only_beginnings(
    pieces: list[bytes],
):
    key = KEY.encode()
    redactor = Redactor.of([key])
    out = b""
    for count, piece in enumerate(pieces, 1):
        out += redactor.feed(piece)
        so_far = b"".join(pieces[:count])
        held = so_far[len(out) :]
        assert key.startswith(held) and len(held) < len(key)
    out += redactor.flush()
    whole = b"".join(pieces)
    assert key not in out
    assert out == whole.replace(key, b"*" * len(key))
