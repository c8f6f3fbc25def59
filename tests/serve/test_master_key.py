"""Where the keys come from that secrets in the database are sealed with."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from roost.config import Settings
from roost.errors import CannotSeal, StartupError
from roost.serve.first_start import prepare
from roost.serve.master_key import master_keys, placeholder_key
from roost.stores.seal import MasterKeys

KEY = b64encode(bytes(range(32))).decode()
OTHER = b64encode(bytes(range(1, 33))).decode()
SHARED = "postgresql://db.internal/roost"


def keys_of(data: Path, **settings: Any) -> MasterKeys:
    prepare(data)
    return master_keys(Settings.model_validate({"data": data, **settings}))


def test_a_server_alone_makes_itself_a_key_for_its_owner_and_keeps_it(tmp_path: Path):
    sealed = keys_of(tmp_path).seal("secret", "a")
    path = tmp_path / "keys" / "master.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys_of(tmp_path).open(sealed, "a") == "secret"


def test_a_key_that_is_given_seals_and_the_servers_own_opens_what_it_has_sealed(tmp_path: Path):
    before = keys_of(tmp_path).seal("secret", "a")
    given = keys_of(tmp_path, master_key=f"{KEY}, {OTHER}")
    assert given.open(before, "a") == "secret"
    elsewhere = keys_of(tmp_path / "b", master_key=KEY)
    assert elsewhere.open(given.seal("secret", "a"), "a") == "secret"
    assert not (tmp_path / "b" / "keys" / "master.key").exists()


def test_on_a_shared_database_only_a_key_that_is_given_seals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(CannotSeal):
        keys_of(tmp_path / "a", database_url=SHARED).seal("secret", "a")
    assert "ROOST_MASTER_KEY" in caplog.text
    assert not (tmp_path / "a" / "keys" / "master.key").exists()
    # A server that was moved there from a file opens what it has sealed before.
    sealed = keys_of(tmp_path / "b").seal("secret", "a")
    assert keys_of(tmp_path / "b", database_url=SHARED).open(sealed, "a") == "secret"
    shared = {"database_url": SHARED, "master_key": KEY}
    sealed = keys_of(tmp_path / "a", **shared).seal("secret", "a")
    assert keys_of(tmp_path / "c", **shared).open(sealed, "a") == "secret"


def test_what_is_no_key_stops_the_start_and_is_not_said(tmp_path: Path):
    with pytest.raises(StartupError, match="ROOST_MASTER_KEY: not a key") as error:
        keys_of(tmp_path, master_key="not-a-key")
    assert "openssl" in (error.value.hint or "")
    assert "not-a-key" not in str(error.value)
    (tmp_path / "keys" / "master.key").write_text("torn")
    with pytest.raises(StartupError, match=r"master\.key: not a key"):
        keys_of(tmp_path)


def test_what_placeholders_are_made_from_outlives_the_master_key(tmp_path: Path):
    """It begins as what versions before took from the master key, so that their sessions keep theirs."""
    before = keys_of(tmp_path, master_key=KEY)
    made = placeholder_key(tmp_path, before)
    assert made == before.derived("placeholders")
    assert placeholder_key(tmp_path, keys_of(tmp_path, master_key=f"{OTHER},{KEY}")) == made
    assert (tmp_path / "keys" / "placeholders.key").stat().st_mode & 0o777 == 0o600
    # A server that shares its database and has no master key yet makes one, too.
    none = [keys_of(tmp_path / name, database_url=SHARED) for name in "ab"]
    found = [placeholder_key(tmp_path / name, keys) for name, keys in zip("ab", none, strict=True)]
    assert len(found[0]) == 32 and found[0] != found[1]
