"""Which server of models gets a model's requests, and the file that says so."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from roost.config import Settings
from roost.domain.budget import Price
from roost.domain.upstream import Upstream, Upstreams
from roost.errors import ModelNotServed, StartupError, Unavailable
from roost.serve.prices import priced
from roost.serve.upstreams import KeyFile, ModelServers, configured

KEY = "sk-0123456789-0123456789"
PRICE = Price(input=Decimal(1), output=Decimal(2), cache_read=Decimal(0), cache_write=Decimal(3))


def known(*listed: tuple[str, str, list[str]]) -> Upstreams:
    return Upstreams([Upstream(name=n, api=api, models=models) for n, api, models in listed])


def read(tmp_path: Path, text: str, **settings: object) -> ModelServers:
    file = tmp_path / "upstreams.toml"
    file.write_text(text)
    given = Settings.model_validate({"upstreams": file, **settings})
    return ModelServers(configured(given), "", True)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-opus-5-5", "exact"),
        ("claude-opus-5-5-20260101", "exact"),
        ("claude-opus-5-5[1m]", "exact"),
        ("claude-opus-5-5-2026", "prefix"),
        ("claude-opus-5-50", "prefix"),
        ("claude-", "prefix"),
        ("xclaude-opus", None),
        ("", None),
        ("gpt-9", None),
    ],
)
def test_the_first_upstream_that_serves_a_model_gets_it(model: str, name: str | None):
    upstreams = known(
        ("exact", "anthropic", ["claude-opus-5-5"]),
        ("prefix", "anthropic", ["claude-*"]),
        ("late", "anthropic", ["claude-opus-5-5", "claude-*"]),
        ("other", "openai", ["gpt-*", "xclaude*"]),
    )
    found = upstreams.of(model, "anthropic")
    assert (found and found.name) == name


def test_a_model_that_nobody_serves_is_refused_by_name():
    upstreams = known(("one", "anthropic", ["claude-*"]), ("two", "openai", ["gpt-*"]))
    upstreams.check("gpt-9")
    with pytest.raises(ModelNotServed, match="'gpt-9' is not served here by the API 'anthropic'"):
        upstreams.check("gpt-9", "anthropic")
    with pytest.raises(ModelNotServed, match="'llama' is not served here"):
        upstreams.check("llama")
    known(("all", "anthropic", ["*"])).check("anything at all")


def test_the_file_says_where_each_model_is_and_the_plain_settings_get_the_rest(tmp_path: Path):
    servers = read(
        tmp_path,
        '[second-to-none]\nurl = "http://10.0.0.1/x"\nmodels = ["a*"]\n'
        '[gpt]\nurl = "https://g.example/v1"\ndialect = "openai"\nmodels = ["*"]\n',
        anthropic_api_key=KEY,
    )
    where = {m: servers.origin_of("anthropic", m).url for m in ("a1", "b1")}
    assert where == {"a1": "http://10.0.0.1/x", "b1": "https://api.anthropic.com"}
    assert servers.origin_of("openai", "a1").url == "https://g.example/v1"


def test_the_file_says_how_many_tokens_models_take(tmp_path: Path):
    servers = read(tmp_path, f"[a]\n{TABLE}window = 32768\n[b]\n{TABLE}")
    assert [each.upstream.window for each in servers.served] == [32768, None]


async def test_keys_are_put_on_as_the_dialect_or_the_file_says(tmp_path: Path):
    (tmp_path / "key").write_text(f"{KEY}\n")
    servers = read(
        tmp_path,
        f'[a]\nurl = "http://a"\nmodels = ["a"]\nkey = "{KEY}"\n'
        '[b]\nurl = "http://b"\nmodels = ["b"]\nkey_file = "key"\nput = "bearer"\n'
        f'[c]\nurl = "http://c"\nmodels = ["c"]\nkey = "{KEY}"\ndialect = "openai"\n'
        '[d]\nurl = "http://d"\nmodels = ["d"]\n',
    )
    found = {}
    for each in servers.served:
        credential = each.origin.credential
        found[each.upstream.name] = credential and (credential.put, await credential.secret())
    put = {"a": "x-api-key", "b": "bearer", "c": "bearer"}
    assert found == {name: (how, KEY) for name, how in put.items()} | {"d": None}
    assert KEY not in repr(servers)


async def test_a_key_file_that_is_replaced_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "key"
    file = KeyFile(path)
    with pytest.raises(Unavailable, match="cannot be read") as refused:
        await file.read()
    assert str(tmp_path) not in refused.value.message, "sessions are told that"
    assert str(path) in caplog.text, "operators are told which"
    path.write_text("first\n")
    assert [await file.read(), await file.read()] == ["first", "first"]
    (tmp_path / "next").write_text("other\n")
    (tmp_path / "next").rename(path)
    assert await file.read() == "other"
    path.unlink()
    with pytest.raises(Unavailable):
        await file.read()


def test_prices_are_those_of_the_server_that_a_model_is_asked_at(tmp_path: Path):
    path = tmp_path / "prices.json"
    path.write_text('{"a": {"input": 9, "output": 9, "cache_read": 9, "cache_write": 9}}')
    prices = "input = 1\noutput = 2\ncache_read = 0\ncache_write = 3\n"
    servers = read(
        tmp_path,
        f'[x]\nurl = "http://x"\nmodels = ["b"]\n[x.prices.a]\n{prices}[x.prices.b]\n{prices}'
        f'[y]\nurl = "http://y"\nmodels = ["*"]\n[y.prices.b]\n{prices.replace("1", "5")}',
    )
    budgets = priced(Settings.model_validate({"prices": path, "budget_dollars": 1}), servers.known)
    prices_of = budgets.prices_for(None)
    assert (prices_of["a"].input, prices_of["b"]) == (9, PRICE)
    assert list(budgets.prices_for("vlt_1")) == ["a"], "of somebody else's account, only the list's"


TABLE = 'url = "http://a.example"\nmodels = ["m"]\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no upstream"),
        ("[a", "Expected"),
        (f'[a]\n{TABLE}key = "{KEY}"\nkey_file = "k"\n', "a `key` and a `key_file`"),
        (f"[vault]\n{TABLE}", "what a session's own server is called"),
        (f'[a]\n{TABLE}dialect = "gopher"\n', "gopher"),
        (f'[a]\n{TABLE}kee = "{KEY}"\n', "unknown field `kee`"),
        ('[a]\nurl = "http://a"\nmodels = []\n', "`models` is empty"),
        ('[a]\nurl = "http://a"\nmodels = ["*-x"]\n', "can only be at the end"),
        ('[a]\nurl = "http://a"\nmodels = ["a b"]\n', "no spaces"),
        (
            f"[a]\n{TABLE}[a.prices.m]\ninput=-1\noutput=0\ncache_read=0\ncache_write=0\n",
            "0 or more",
        ),
        (f"[a]\n{TABLE}window = 4096\n", "`window` is 4096 tokens: agents need at least 8192"),
        (f"[anthropic]\n{TABLE}", "is the name of the one"),
    ],
)
def test_a_file_of_upstreams_that_is_wrong_stops_the_start_without_showing_a_key(
    tmp_path: Path, text: str, problem: str
):
    with pytest.raises(StartupError, match="ROOST_UPSTREAMS") as caught:
        read(tmp_path, text, anthropic_api_key=KEY)
    assert problem in caught.value.message
    assert KEY not in str(caught.value)
