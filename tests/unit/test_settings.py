"""Settings that were renamed."""

from __future__ import annotations

import pytest

from roost.config import RENAMED, Settings, variable_of


@pytest.mark.parametrize(("before", "name"), RENAMED.items())
def test_a_setting_is_read_by_the_name_it_had_before_and_that_is_said(
    before: str, name: str, caplog: pytest.LogCaptureFixture
):
    found = Settings.read({variable_of(before): "3"})
    assert getattr(found, name) == 3
    assert f"{variable_of(before)} is now {variable_of(name)}" in caplog.text


def test_the_new_name_of_a_setting_comes_before_the_old_one():
    assert Settings.read({"ROOST_POOL": "3", "ROOST_PRESTART": "4"}).prestart == 4
