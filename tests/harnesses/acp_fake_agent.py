"""An agent without a model that speaks the Agent Client Protocol. A program, for tests; it starts in no time.

It answers with all that it has heard, so that one can see what its record is worth. `RUN[command]` in a prompt is a
tool call, with permission asked first, and so are calls that it is told to make again, unless `AGENT_HEEDS` is
`nothing`; `HANG` waits until it is
cancelled, `STOP` does nothing more after the calls, `DIE` ends the process. A first `FAIL` is answered with an error,
which the record has as if it had been said; told to go on, the process dies half an answer later. Its record is a file in the home.
`AGENT_RECORD` says what that is worth:

* `kept`: a session can be loaded, and is replayed;
* `none`: it cannot load sessions;
* `late`: as `kept`, but what a prompt comes to is written when that is answered. If the process is killed before, its
  record has nothing of it; with `AGENT_WRITES=calls` it has the calls that were made, and not what they came to;
* `overwritten`: as in Gemini CLI 0.61. The file is named after the minute and the session, and whoever opens a
  session begins the file of this minute anew before it looks for older ones. So a session that is loaded within
  the minute in which it was written is gone. `AGENT_MINUTE` is the minute, so that a test need not wait for one;
* `emptied`: the same, but the agent does not notice, and replays nothing.

With `AGENT_TRACE` all that is said, on both sides, is written to that file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

KEPT = os.environ.get("AGENT_RECORD", "kept")
WRITES = os.environ.get("AGENT_WRITES", "nothing")
MINUTE = os.environ.get("AGENT_MINUTE", "now")
TRACE = os.environ.get("AGENT_TRACE")
CHATS = Path(os.environ["HOME"]) / ".chats"
REFUSED = "API Error: 402 roost: the session's budget of 1 requests is used up"
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class FakeAgent:
    """One process serves one session."""

    def __init__(self) -> None:
        self.said: list[list[Any]] = []
        self.file = CHATS / "none"
        self.session = ""

    def serve(self) -> None:
        while (message := self.hear()) is not None:
            method, params = message.get("method"), message.get("params", {})
            if method == "session/load" and not self.load(params["sessionId"]):
                error = {"code": -32603, "message": "No previous sessions found for this project."}
                self.tell({"id": message["id"], "error": error})
            elif "id" in message:
                answer = self.answer(method, params)
                is_error = "error" in answer
                self.tell({"id": message["id"], **(answer if is_error else {"result": answer})})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                can = {"loadSession": KEPT != "none"}
                return {"protocolVersion": 1, "agentCapabilities": can}
            case "session/new":
                self.session = str(uuid4())
                self.begin_file()
                return {"sessionId": self.session}
            case "session/prompt":
                return self.prompted("\n".join(block["text"] for block in params["prompt"]))
            case _:
                return {}

    def load(self, session: str) -> bool:
        self.session = session
        if KEPT in ("overwritten", "emptied"):
            self.begin_file()  # before it is looked for: this is the trap
        for file in sorted(CHATS.glob(f"session-*-{session[:8]}.json")):
            if said := json.loads(file.read_text()):
                self.said, self.file = said, file
        for kind, what in self.said:
            if kind == "call":
                self.update("tool_call", **what)
            else:
                name = "user_message_chunk" if kind == "user" else "agent_message_chunk"
                self.update(name, content={"type": "text", "text": what})
        return bool(self.said) or KEPT == "emptied"

    def prompted(self, text: str) -> dict[str, Any]:
        self.note("user", text)
        if "DIE" in text:
            os._exit(9)
        if "HANG" in text:
            while (self.hear() or {}).get("method") != "session/cancel":
                pass
            return {"stopReason": "cancelled"}
        if "FAIL" in self.said[0][1] and len(self.said) < 4:
            return self.failed(text)
        own = text.rpartition("</system-reminder>")[2]
        asked = re.findall(r"RUN\[(.*?)\]", own)
        again = re.findall(r"^bash (\{.*\})$", text.partition("make them again")[2], re.MULTILINE)
        again = [] if os.environ.get("AGENT_HEEDS") == "nothing" else again
        for command in [*(json.loads(each)["command"] for each in again), *asked]:
            if not self.run(command):
                return {"stopReason": "end_turn"}
        while "STOP" in own and self.hear() is not None:
            pass
        answer = "Heard: " + " | ".join(said for kind, said in self.said if kind == "user")
        self.say(answer)
        self.write(answered=True)
        used = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12}
        return {"stopReason": "end_turn", "usage": used}

    def failed(self, text: str) -> dict[str, Any]:
        if "FAIL" in text:
            self.say(REFUSED)
            return {"error": {"code": -32603, "message": f"Internal error: {REFUSED}"}}
        self.say("Half an answer.")
        os._exit(9)

    def say(self, text: str) -> None:
        for piece in (text[:5], text[5:]):
            self.update("agent_message_chunk", content={"type": "text", "text": piece})
        self.note("text", text)

    def run(self, command: str) -> bool:
        call = {
            "toolCallId": f"call-{len(self.said)}",
            "title": f"Run {command}",
            "kind": "execute",
            "rawInput": {"command": command},
        }
        self.update("tool_call", **call, status="pending")
        self.note("call", {**call, "status": "in_progress"})
        self.write(answered=WRITES == "calls")
        params = {"sessionId": self.session, "toolCall": call, "options": OPTIONS}
        self.tell({"id": 1, "method": "session/request_permission", "params": params})
        while "result" not in (message := self.hear() or {"result": {"outcome": {}}}):
            pass
        allowed = message["result"]["outcome"].get("optionId") == "yes"
        output = ""
        if allowed:
            output = subprocess.run(
                command, shell=True, check=False, capture_output=True, text=True
            ).stdout
        ended = {"status": "completed" if allowed else "failed", "rawOutput": output}
        self.update("tool_call_update", toolCallId=call["toolCallId"], **ended)
        self.said[-1][1] = {**call, **ended}
        self.write()
        return allowed

    def update(self, name: str, **fields: Any) -> None:
        params = {"sessionId": self.session, "update": {"sessionUpdate": name, **fields}}
        self.tell({"method": "session/update", "params": params})

    def begin_file(self) -> None:
        CHATS.mkdir(exist_ok=True)
        self.file = CHATS / f"session-{MINUTE}-{self.session[:8]}.json"
        self.write()

    def note(self, kind: str, what: Any) -> None:
        self.said.append([kind, what])
        self.write()

    def write(self, *, answered: bool = False) -> None:
        if KEPT != "late" or answered or not self.said:
            self.file.write_text(json.dumps(self.said))

    def hear(self) -> dict[str, Any] | None:
        line = sys.stdin.readline()
        self.trace("heard", line)
        return json.loads(line) if line else None

    def tell(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message})
        self.trace("said", line)
        print(line, flush=True)

    def trace(self, who: str, line: str) -> None:
        if TRACE and line:
            with Path(TRACE).open("a") as file:
                file.write(json.dumps([who, json.loads(line)]) + "\n")


if __name__ == "__main__":
    FakeAgent().serve()
