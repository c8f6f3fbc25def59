"""Hostile programs, run inside a sandbox to see whether it holds. They need nothing but `python3` 3.9.

`inside` tries to get out or to learn what it should not, and prints what it came to; `bombs` takes more
than its share. To run them inside, show this folder there as `…/roost/testing/probes`, make `…` the
`PYTHONPATH`, and run `python3 -m roost.testing.probes.inside` with the facts as JSON on standard input.
"""
