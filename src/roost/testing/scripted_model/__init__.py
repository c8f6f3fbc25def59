"""A model that does what the prompt tells it to: the test double, and the demo that needs no key.

The script travels in the prompt, so the server keeps nothing, and resuming, replaying and working
in parallel need no preparation:

    Please answer. SCRIPT[{"tool": "Bash", "input": {"command": "date"}}, {"text": "It is late."}]

The newest user text that holds a script counts; the step played is the number of assistant
messages after it. `script.Step` lists what a step may contain. It speaks the Anthropic Messages and
the OpenAI Responses APIs:

    python -m roost.testing.scripted_model --port 8765
"""

from roost.testing.scripted_model.app import ScriptedModel, SeenRequest, run, scripted_model

__all__ = ["ScriptedModel", "SeenRequest", "run", "scripted_model"]
