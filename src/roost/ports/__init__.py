"""What the core needs of the world. Read this folder first.

Each Protocol is one need, with who calls each method, when, what is atomic, and what it raises.
Adapters live in rooms named after the need (`stores`, `harnesses`), and pass its contract kit in
`roost.testing`.
"""
