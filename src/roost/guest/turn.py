"""The process of a turn: `python -m roost.guest.turn FOLDER`, started by `detached`.

Its stdout is the turn's log. Only events are written there: what anything else prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from roost.guest import events, runner
from roost.guest.detached import DetachedTurn

_RUNS: dict[str, Any] = {"init": runner.run_init, "chat": runner.run_chat}


def main() -> None:
    """Take the turn, if nobody else does, and say how it ended."""
    folder = Path(sys.argv[1])
    turn = DetachedTurn(folder.name)
    if not turn.claim():
        return
    events.tell_to(os.fdopen(os.dup(1), "w", encoding="ascii"))
    os.dup2(2, 1)
    code = 0
    try:
        asked = json.loads((folder / "input").read_bytes())
        asyncio.run(_RUNS[asked["run"]](**asked["args"]))
    except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits to be told
        traceback.print_exc()
        events.emit_error(f"{type(error).__name__}: {error}")
        code = 1
    turn.end(code)


if __name__ == "__main__":
    main()
