"""The host-side proxies that carry a sandbox's few allowed connections and put secrets on.

Each session has several, each behind a unix socket of its own:

* `model`: HTTP to the model's API. What is asked is checked, the placeholder key is replaced, what
  comes back is passed on as it comes, and what it cost is counted.
* `git`: what git asks of the session's repositories, with the token for each.
* `mcp`: one for each of the agent's MCP servers: whatever MCP sends, with the token for that server.
* `network`: an HTTP proxy (CONNECT, and plain `http://`) with rules about hosts, ports and addresses. Requests
  to hosts for which the session has a secret are read and given it (`intercept`, `substitution`, `tls`).

All but the last lead to origins with a credential (`upstream`). `host` opens and closes all of them. Everything
that arrives is from inside a sandbox, and is treated as written by an attacker: bounded in size, in time and
in number, and parsed by h11, not by us.
"""
