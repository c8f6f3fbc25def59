"""A container per place, over the Docker Engine API.

`docs/sandboxes.md` says how it differs from the default. A reader may take the files in this order:
`provider` (gives places), `sandbox` (a place), `process` (a command in it), `recipe` (what a container
is made of), `profile` (its system-call filter), then `engine` and `wire` (how the engine is spoken to).
`images` makes what containers are made of.
"""

from roost.sandboxes.docker.provider import DockerProvider

__all__ = ["DockerProvider"]
