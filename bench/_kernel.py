"""A bare Jupyter kernel, as a program would keep it: starts, runs `1+1` and ends what it is told to, and says how long.

    .tools/jupyter-kernel/bin/python bench/_kernel.py

One word on each line of the input, `cold` or `warm`; seconds on each line of the output. `cold` starts another kernel
and waits for its first answer, `warm` asks the kernel that is there once more.
"""

import sys
import time

from jupyter_client import KernelManager


def run(client):
    """Run it to its end: the reply has come, and the kernel is idle again."""
    told = []
    reply = client.execute_interactive("1+1", timeout=60, output_hook=told.append)
    assert reply["content"]["status"] == "ok", reply
    [value] = [each for each in told if each["msg_type"] == "execute_result"]
    assert value["content"]["data"]["text/plain"] == "2"


def started():
    """A kernel, and its client."""
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return manager, client


def main():
    """Serve until there is nobody to serve."""
    manager = client = None
    for line in sys.stdin:
        if line.strip() == "cold" and manager is not None:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        began = time.perf_counter()
        if line.strip() == "cold":
            manager, client = started()
        run(client)
        print(time.perf_counter() - began, flush=True)
    manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
