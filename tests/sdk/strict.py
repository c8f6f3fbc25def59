"""Run with an older SDK: what is on stdin, a list of type name and object, as its types have it, strictly.

Its clients take what they get; programs of its users rely on what the types say.
"""

from __future__ import annotations

import json
import sys

from anthropic.types import beta
from pydantic import TypeAdapter, ValidationError

failed = False
for names, found in json.load(sys.stdin):
    kind = None
    for name in names:
        room, _, last = name.rpartition(".")
        place = __import__(f"anthropic.types.beta.{room}", fromlist=["x"]) if room else beta
        kind = kind or getattr(place, last, None)
    if kind is None:
        continue  # this SDK has no such thing
    try:
        TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        failed = True
        print(names[0], error, file=sys.stderr)
sys.exit(failed)
