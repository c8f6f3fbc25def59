"""The model that answers without a key: it does what the prompt tells it to.

Without a model key a server talks to this one, so that everything can be tried offline, and it is what
tests let agents talk to (`roost.testing.scripted_model`). The script travels in the prompt, so the model
keeps nothing, and resuming, replaying and working in parallel need no preparation:

    Please answer. SCRIPT[{"tool": "Bash", "input": {"command": "date"}}, {"text": "It is late."}]

The newest user text that holds a script counts; the step played is the number of assistant
messages after it. `script.Step` lists what a step may contain. It speaks the Anthropic Messages and
the OpenAI Responses APIs, each a `dialect`.
"""

from roost.builtin_model.app import BuiltinModel

__all__ = ["BuiltinModel"]
