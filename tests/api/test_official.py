"""The official types that the server carries with it."""

from __future__ import annotations

import json
import subprocess
import sys

from scripts import official as script


def test_the_file_says_what_the_installed_package_says():
    assert script.FILE.read_text() == script.written(), "run `make shapes`"


def test_no_reply_takes_the_place_of_a_request_in_the_description():
    written = json.loads(script.FILE.read_text())
    requests = {name.rpartition(".")[2] for name in written["requests"]}
    assert requests
    assert not requests & set(written["schemas"])


def test_a_server_starts_without_the_official_package():
    code = (
        "import sys, roost.serve.main; print([m for m in sys.modules if m.startswith('anthropic')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
