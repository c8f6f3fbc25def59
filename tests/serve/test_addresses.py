"""What a server says about where it can be found."""

from __future__ import annotations

import pytest

from roost.serve import main


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "192.0.2.7"])
def test_a_server_for_one_address_names_no_other(host: str) -> None:
    assert main._reach(host, f"http://{host}:8700") == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_for_all_addresses_names_them_and_says_that_it_is_plain_http(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_addresses", lambda: ["192.0.2.7", "198.51.100.1"])
    said = main._reach(host, "http://127.0.0.1:8701")
    assert "http://192.0.2.7:8701" in said
    assert "http://198.51.100.1:8701" in said
    assert "Plain HTTP" in said


def test_the_addresses_of_this_machine_are_found_without_loopback() -> None:
    assert not [address for address in main._addresses() if address.startswith("127.")]
