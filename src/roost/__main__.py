"""`python -m roost` is `roost`."""

from roost.cli.main import run

run()
