"""`python -m roost.testing.scripted_model`: the scripted model on a port, until interrupted."""

from __future__ import annotations

from argparse import ArgumentParser

from roost.testing.scripted_model.app import run

if __name__ == "__main__":
    parser = ArgumentParser(prog="roost.testing.scripted_model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--require-key", help="refuse requests that carry another API key")
    options = parser.parse_args()
    run(options.host, options.port, require_key=options.require_key)
