"""Places for an agent's process: `ports/sandbox`.

`bubblewrap` is the default and needs no daemon; `host` confines nothing. `cgroups`, `procfs`,
`processes`, `places` and `paths` are what they share.
"""
