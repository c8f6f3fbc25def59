"""Files in messages, all the way: the official SDK, the real Claude Code, and the model that it asks."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

from tests.journeys.chat import Chat, said, script, serving

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 72 72]>>endobj\n"
    b"trailer<</Root 1 0 R>>\n%%EOF\n"
)


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff\x80\x00" * 2) * 2)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def shown(model: ScriptedModel) -> list[dict[str, Any]]:
    """The pictures and documents in what the model was asked last in the conversation."""
    asked = [request.body["messages"] for request in model.requests if request.body.get("tools")]
    content = [message["content"] for message in asked[-1] if isinstance(message["content"], list)]
    return [
        block["source"]
        for blocks in content
        for block in blocks
        if block["type"] in ("image", "document")
    ]


def test_the_bytes_of_a_messages_files_arrive_at_the_model_and_stay_in_its_memory(tmp_path: Path):
    model, image = ScriptedModel(), png()
    environ = {"ANTHROPIC_API_KEY": "sk-ant-test", "ROOST_SLEEP_AFTER": "0"}
    with (
        serving(model) as url,
        LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url, **environ) as server,
    ):
        chat = Chat(server)
        files = [
            chat.client.beta.files.upload(file=("a.png", image, "image/png")),
            chat.client.beta.files.upload(file=("b.pdf", PDF, "application/pdf")),
            chat.client.beta.files.upload(file=("c.md", b"# Plan\n", "text/markdown")),
        ]
        kinds = ("image", "document", "document")
        content: Any = [
            {"type": "text", "text": script({"text": "I see."})},
            *(
                {"type": kind, "source": {"type": "file", "file_id": file.id}}
                for kind, file in zip(kinds, files, strict=True)
            ),
        ]
        # It waits in the queue while its files are deleted.
        chat.send(script({"text": "slow", "delay": 0.7}))
        chat.wait_for("span.model_request_start")
        event: Any = {"type": "user.message", "content": content}
        chat.client.beta.sessions.events.send(chat.session.id, events=[event])
        for file in files:
            chat.client.beta.files.delete(file.id)
        while said(chat.events())[-1:] != ["I see."]:  # on a busy machine, that is a second turn
            chat.wait_until_idle()
        sources = [
            {
                "type": "base64",
                "media_type": "image/png",
                "data": base64.b64encode(image).decode(),
            },
            {
                "type": "base64",
                "media_type": "application/pdf",
                "data": base64.b64encode(PDF).decode(),
            },
            {"type": "text", "media_type": "text/plain", "data": "# Plan\n"},
        ]
        assert shown(model) == sources
        server.kill()
        server.start()
        chat.move_to(server)
        chat.turn(script({"text": "I still see."}))
        assert shown(model) == sources
        [listed] = [
            each
            for each in chat.events()
            if getattr(each, "content", None) and len(each.content) == 4
        ]
        assert [block.source.file_id for block in listed.content[1:]] == [file.id for file in files]
