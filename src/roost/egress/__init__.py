"""The host-side proxy that carries a sandbox's few allowed connections and puts secrets on.

Two roads lead out, each a unix socket of its own for every session:

* `model`: HTTP to the model's API. What is asked is checked, the placeholder key is replaced, what
  comes back is passed on as it comes, and what it cost is counted.
* `network`: an HTTP proxy (CONNECT, and plain `http://`) with rules about hosts, ports and addresses.

`host` opens and closes them. Everything that arrives is from inside a sandbox, and is treated as
written by an attacker: bounded in size, in time and in number, and parsed by h11, not by us.
"""
