"""Structured logs: one line per event, with what was done (`action`) and to which session."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import msgspec

_TOKEN = re.compile(r"(token=)[\w.%~-]+")  # one that opens WebSockets; they travel in addresses
_encode = msgspec.json.Encoder(enc_hook=str).encode
_LINES_PER_MINUTE = 10  # of one kind, of what a stranger can cause
_LINES_OF_ALL = 6000  # of one kind, of anything else
_MINUTE = 60.0
_KINDS = 100
_BLANK = vars(logging.makeLogRecord({}))
_STANDARD = set(_BLANK) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


def configure(form: Literal["auto", "json", "text"], level: str) -> None:
    """Write all logs to standard error, in the form asked for."""
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging._srcfile = None
    logging.setLogRecordFactory(_Record)
    _Logger.lines = _LineCounts(_LINES_OF_ALL)
    logging.setLoggerClass(_Logger)
    plain = (logging.Logger, logging.RootLogger)
    for logger in (root, *logging.Logger.manager.loggerDict.values()):
        if type(logger) in plain:  # of a module that was loaded before
            logger.__class__ = _Logger
    from_strangers = logging.getLogger("uvicorn.error")
    vars(from_strangers)["lines"] = _LineCounts(_LINES_PER_MINUTE)
    for noisy in ("httpx2", "httpcore2", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Record(logging.LogRecord):
    """Does not know where in the code or on which thread it was made: no line says that, and finding it out
    costs more than the rest. Nor does it keep what else `logging` gives, its function and its stack.
    """

    def __init__(
        self,
        name: str,
        level: int,
        pathname: str,
        lineno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        *_: Any,
    ) -> None:
        now = time.time()
        self.__dict__.update(_BLANK)
        self.name = name
        self.levelno = level
        self.levelname = logging.getLevelName(level)
        self.msg = msg
        self.args = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
        self.exc_info = exc_info
        self.created = now
        self.msecs = int(now % 1 * 1000)


class _LineCounts:
    """Lets so many lines of a kind through in a minute, and knows of the others how many they were."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kinds: dict[str, tuple[float, int]] = {}

    def count(self, msg: object, now: float) -> int | None:
        """Count a line. None: it is one too many; else how many were left out before it, mostly 0."""
        kind = str(msg)[:100]
        since, count = self._kinds.get(kind, (now, 0))
        left_out = 0
        if now - since >= _MINUTE:
            since, left_out, count = now, max(0, count - self._most), 0
        if len(self._kinds) >= _KINDS and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        return left_out if count < self._most else None


class _Logger(logging.Logger):
    """Counts a line before a record is made of it: that takes many times as long.

    What uvicorn writes is counted by itself: it is about connections, and anybody can make a connection.
    """

    lines = _LineCounts(_LINES_OF_ALL)

    def _log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        left_out = self.lines.count(msg, time.time())
        if left_out is None:
            return
        if left_out:
            msg = f"{msg} ({left_out} more such lines were left out)"
        super()._log(level, msg, *args, **options)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    after = len(_BLANK) if type(record) is _Record else 0  # what every record has comes first
    items = islice(vars(record).items(), after, None)
    return {"session": None, **{k: v for k, v in items if k not in _STANDARD}}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": f"{_to_the_second(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        text = _encode(line).decode()
        return _TOKEN.sub(r"\1…", text) if "token=" in text else text


@lru_cache(maxsize=16)
def _to_the_second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _TOKEN.sub(r"\1…", self._lines(record))

    def _lines(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        extras = " ".join(f"{k}={v}" for k, v in _extras(record).items() if v is not None)
        line = f"{moment} {record.levelname.lower():7} {record.getMessage()}"
        line = _escaped(f"{line}  {extras}" if extras else line)
        if not record.exc_info:
            return line
        return "\n  ".join(
            [line, *map(_escaped, self.formatException(record.exc_info).split("\n"))]
        )


def _escaped(line: str) -> str:
    """Without control characters: what an agent says must not begin a line or steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
