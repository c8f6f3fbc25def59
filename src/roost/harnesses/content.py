"""Content blocks, from each side's shapes to the other's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from roost.domain.events import Entry
from roost.harnesses.json_lines import Json


def text_block(text: str) -> Json:
    """A content block with this text."""
    return {"type": "text", "text": text}


def blocks_of_inputs(messages: Iterable[Entry]) -> list[Json]:
    """What messages say, as blocks of one prompt: the CLI takes what is handed over together as one."""
    blocks = []
    for entry in messages:
        said = [_for_model(block) for block in entry.fields.get("content") or []]
        if entry.type == "system.message":
            said = [text_block(reminder(as_text(said)))]
        blocks += [block for block in said if block["type"] != "text" or block["text"].strip()]
    return blocks or [text_block("(an empty message)")]


def reminder(text: str) -> str:
    """A note to the agent that nobody has written to it."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def blocks_of_result(content: Any) -> list[Json]:
    """What a tool returned, as the API shows it."""
    if isinstance(content, str):
        return [text_block(content)] if content else []
    blocks = content if isinstance(content, list) else []
    return [_shown(block) for block in blocks if isinstance(block, dict)]


def as_mcp(content: Sequence[Json] | None) -> list[Json]:
    """A client's result of a custom tool, as an MCP server returns it."""
    return [_mcp(block) for block in content or []]


def as_text(content: Sequence[Json] | None) -> str:
    """The text of content blocks, with a line for each; one that has none is at least named."""
    return "\n".join(_words(block) for block in content or [])


def _for_model(block: Json) -> Json:
    if block["type"] == "text":
        return text_block(block["text"])
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("base64", "url", "text"):
        return {name: value for name, value in block.items() if value is not None}
    return text_block(_words(block))


def _shown(block: Json) -> Json:
    source = block.get("source")
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return text_block(block["text"])
    if block.get("type") == "image" and isinstance(source, dict):
        fields = {name: source.get(name) for name in ("type", "media_type", "data")}
        if fields["type"] == "base64" and all(isinstance(v, str) for v in fields.values()):
            return {"type": "image", "source": fields}
    return text_block(json.dumps(block))


def _mcp(block: Json) -> Json:
    source = block.get("source")
    if block["type"] == "image" and isinstance(source, dict) and source.get("type") == "base64":
        return {"type": "image", "data": source["data"], "mimeType": source["media_type"]}
    return text_block(_words(block))


def _words(block: Json) -> str:
    """A block in words; one that cannot be shown is at least named."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            about = (block.get("title"), block.get("context"))
            return "\n".join([*(words for words in about if words), text])
        case {"type": "search_result"}:
            return f"{block.get('title')} ({block.get('source')})\n{as_text(block.get('content'))}"
        case {"source": {"type": "file", "file_id": file_id}}:
            return f"[{block['type']} {file_id}: it is not there any more]"
        case _:
            return f"[{block.get('type')}: it cannot be shown here]"
