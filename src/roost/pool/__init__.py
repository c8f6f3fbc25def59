"""Pools as clients of Azure's dynamic sessions know them: paths, shapes and errors of that API.

`app` finds out who asks for what, `data_plane` has the operations, `shapes` what answers look like in both generations
of the API, `files` the files, and `mcp` is the same for agents that speak the Model Context Protocol.
"""
