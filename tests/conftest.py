"""Before any test imports the shipped kits: their assertions explain themselves like a test's own."""

from __future__ import annotations

import signal

import pytest

pytest.register_assert_rewrite("roost.testing")

# A shell's background job ignores Ctrl-C, and so would every program that the tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
