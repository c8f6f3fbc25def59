"""The kits' assertions explain themselves like those of any test."""

import pytest

pytest.register_assert_rewrite("roost.testing")
