"""Snapshots of workspaces: what makes their files outlive the disk they are on.

`gather` reads a tree, `snapshots` stores and finds, `restore` puts back, `garbage` removes what is not needed.
"""
