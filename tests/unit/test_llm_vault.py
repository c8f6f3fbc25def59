"""What the metadata of a vault says about the model's account."""

from __future__ import annotations

import pytest

from roost.domain.llm_vault import LlmVault, check_metadata, is_for_models, llm_vault
from roost.errors import InvalidRequest

THEIRS = "sandbox0.managed_agents"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"roost.role": "llm"}, LlmVault()),
        (
            {
                "roost.role": "llm",
                "roost.engine": "codex",
                "roost.base_url": "https://g.example/v1",
            },
            LlmVault(engine="codex", base_url="https://g.example/v1"),
        ),
        (
            {
                f"{THEIRS}.role": "llm",
                f"{THEIRS}.engine": "claude",
                f"{THEIRS}.llm_base_url": "https://g.example",
                "roost.key_header": "x-api-key",
                "team": "a",
            },
            LlmVault(base_url="https://g.example", key_header="x-api-key"),
        ),
        (
            {f"{THEIRS}.role": "llm", "roost.role": "llm", "roost.engine": "codex"},
            LlmVault(engine="codex"),
        ),
    ],
)
def test_our_keys_and_those_of_sandbox0_say_the_same(metadata: dict[str, str], said: LlmVault):
    assert is_for_models(check_metadata(metadata))
    assert llm_vault(metadata) == said


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"roost.role": "credential"}, "metadata.roost.role: Input should be 'llm'"),
        ({f"{THEIRS}.role": "credential"}, f"metadata.{THEIRS}.role: Input should be 'llm'"),
        ({"roost.rol": "llm"}, "metadata.roost.rol: unknown; `roost.` is reserved"),
        ({f"{THEIRS}.kind": "x"}, f"metadata.{THEIRS}.kind: unknown"),
        ({"roost.engine": "claude"}, "metadata.roost.engine: only a vault with"),
        ({f"{THEIRS}.llm_base_url": "https://x.example"}, "llm_base_url: only a vault with"),
        ({"roost.role": "llm", f"{THEIRS}.role": "x"}, "metadata.roost.role: differs from"),
        ({"roost.role": "llm", "roost.engine": "a b"}, "not the name of an engine"),
        ({"roost.role": "llm", "roost.key_header": "basic"}, "'x-api-key' or 'bearer'"),
        ({"roost.role": "llm", "roost.base_url": "ftp://x"}, "must begin with https://"),
        ({"roost.role": "llm", "roost.base_url": "https://u:p@x.example"}, "a name or a password"),
        ({"roost.role": "llm", "roost.base_url": "https://x.example/?a"}, "query or a fragment"),
        ({"roost.role": "llm", "roost.base_url": "http://x.example"}, "over https only"),
        ({"roost.role": "llm", "roost.base_url": "http://93.184.215.14"}, "over https only"),
    ],
)
def test_metadata_that_means_nothing_is_refused_by_its_key(metadata: dict[str, str], problem: str):
    with pytest.raises(InvalidRequest, match=problem.replace(".", r"\.")):
        check_metadata(metadata)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:11434", "10.1.2.3", "ollama:80", "gw.internal", "[fd00::1]"]
)
def test_a_gateway_in_a_private_network_may_do_without_tls(host: str):
    check_metadata({"roost.role": "llm", "roost.base_url": f"http://{host}/x"})


def test_metadata_without_reserved_keys_is_free():
    assert check_metadata({"sandbox0": "x", "roost": "y"}) == {"sandbox0": "x", "roost": "y"}
    assert not is_for_models({"team": "a"})


@pytest.mark.parametrize(
    ("vault", "api", "url", "put"),
    [
        (LlmVault(), "anthropic", "https://api.anthropic.com", "x-api-key"),
        (LlmVault(base_url="https://g"), "anthropic", "https://g", "bearer"),
        (
            LlmVault(base_url="https://g", key_header="x-api-key"),
            "anthropic",
            "https://g",
            "x-api-key",
        ),
        (LlmVault(), "openai", "https://api.openai.com/v1", "bearer"),
        (LlmVault(), "other", None, "bearer"),
    ],
)
def test_the_key_goes_to_the_right_place_in_the_right_header(
    vault: LlmVault, api: str, url: str | None, put: str
):
    assert (vault.url(api), vault.put(api)) == (url, put)
