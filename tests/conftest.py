"""Before any test imports the shipped kits: their assertions explain themselves like a test's own."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("roost.testing")
