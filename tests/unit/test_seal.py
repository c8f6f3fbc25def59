"""Secrets that only who has the key can read."""

from __future__ import annotations

import pytest

from roost.errors import CannotSeal, CannotUnseal
from roost.stores.seal import MasterKeys, fingerprint, key_of

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
TOKEN = "ghp_a-token"


def test_a_secret_comes_back_to_who_has_the_key_and_looks_different_each_time():
    keys = MasterKeys([OLD])
    first, second = keys.seal(TOKEN, "a"), keys.seal(TOKEN, "a")
    assert first != second
    assert TOKEN not in first
    assert keys.open(first, "a") == keys.open(second, "a") == TOKEN
    assert TOKEN not in repr(keys)
    assert OLD.hex() not in repr(keys)


def test_another_key_is_told_which_one_it_takes():
    sealed = MasterKeys([OLD]).seal(TOKEN, "a")
    with pytest.raises(CannotUnseal, match=f"{fingerprint(OLD)}.*has {fingerprint(NEW)}") as error:
        MasterKeys([NEW]).open(sealed, "a")
    assert "ROOST_MASTER_KEY" in (error.value.hint or "")
    with pytest.raises(CannotUnseal, match="has none"):
        MasterKeys([]).open(sealed, "a")


def test_after_a_change_of_keys_the_new_one_seals_and_both_open():
    before = MasterKeys([OLD]).seal(TOKEN, "a")
    both = MasterKeys([NEW, OLD])
    assert both.open(before, "a") == TOKEN
    assert MasterKeys([NEW]).open(both.seal(TOKEN, "a"), "a") == TOKEN


def test_without_a_key_of_its_own_nothing_is_sealed_and_what_was_is_opened():
    sealed = MasterKeys([OLD]).seal(TOKEN, "a")
    keys = MasterKeys([OLD], seals=False)
    assert keys.open(sealed, "a") == TOKEN
    for none in (keys, MasterKeys([])):
        with pytest.raises(CannotSeal):
            none.seal(TOKEN, "a")


@pytest.mark.parametrize("change", ["about", "byte", "short", "form", "junk"])
def test_what_was_changed_or_belongs_elsewhere_does_not_open(change: str):
    keys = MasterKeys([OLD])
    sealed, about = keys.seal(TOKEN, "a"), "a"
    match change:
        case "about":
            about = "b"
        case "byte":
            sealed = sealed[:-4] + ("A" if sealed[-4] != "A" else "B") + sealed[-3:]
        case "short":
            sealed = sealed[:20]
        case "form":
            sealed = "2" + sealed[1:]
        case _:
            sealed = "plain"
    with pytest.raises(CannotUnseal):
        keys.open(sealed, about)


@pytest.mark.parametrize("text", ["", "short", "A" * 43, "ä" * 44, "A" * 48])
def test_what_is_no_key_is_refused(text: str):
    with pytest.raises(ValueError):
        key_of(text)
    assert key_of("//////////////////////////////////////////8=\n") == key_of("_" * 42 + "8=")
