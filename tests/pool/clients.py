"""Three clients of Azure's dynamic sessions, unchanged from PyPI, with one pool; prints what they saw as JSON.

    python clients.py POOL_ENDPOINT KEY DIRECTORY

It is what users' programs look like: nothing here knows of Roost but the endpoint and the key.
"""

import asyncio
import io
import json
import logging
import sys
from pathlib import Path

import requests
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.azure import ACADynamicSessionsCodeExecutor
from azure.core.credentials import AccessToken
from langchain_azure_dynamic_sessions import SessionsBashTool, SessionsPythonREPLTool
from llama_index.tools.azure_code_interpreter import AzureCodeInterpreterToolSpec

FAR = 4102444800  # a moment in seconds: tokens do not expire before
PICTURE = "class P:\n    def _repr_png_(self):\n        return b'png'\nP()"


def main(endpoint, key, folder):
    """All three, one after the other."""
    logging.disable(logging.WARNING)
    folder = Path(folder)
    (folder / "given.txt").write_text("from here")
    report = {
        "langchain": langchain(endpoint, key),
        "autogen": asyncio.run(autogen(endpoint, key, folder)),
        "llama_index": llama_index(endpoint, key, folder),
    }
    report["autogen"]["downloaded"] = (folder / "made.txt").read_text()
    print(json.dumps(report))


def langchain(endpoint, key):
    """Python in the older generation's shapes, and a shell in the newer one's."""
    given = {"pool_management_endpoint": endpoint, "access_token_provider": lambda: key}
    tool = SessionsPythonREPLTool(**given)
    seen = {"invoked": json.loads(tool.invoke("6 * 7"))}
    tool.execute("x = 20")
    seen["kept"] = tool.execute("```python\nprint('out')\nx + 1\n```")
    seen["failed"] = tool.execute("1/0")
    seen["picture"] = json.loads(tool.run(PICTURE))["result"]
    made = tool.upload_file(data=io.BytesIO(b"deep"), remote_file_path="sub/a b.txt")
    seen["uploaded"] = [made.filename, made.size_in_bytes]
    seen["read"] = tool.execute("open('/mnt/data/sub/a b.txt').read()")["result"]
    seen["listed"] = [file.full_path for file in tool.list_files()]
    seen["downloaded"] = tool.download_file(remote_file_path="sub/a b.txt").read().decode()
    seen["absent"] = refused(lambda: tool.download_file(remote_file_path="absent"))
    shell = SessionsBashTool(**given, session_id=tool.session_id)
    seen["shell"] = json.loads(shell.invoke("cat 'sub/a b.txt'; echo err >&2; exit 3"))
    stopped = tool.session_id
    tool._delete_session_sync(stopped)  # `delete_session` does the same in a thread
    seen["after"] = tool.execute("'x' in globals()")["result"]
    tool._delete_session_sync(stopped)
    wrong = SessionsPythonREPLTool(**{**given, "access_token_provider": lambda: "wrong"})
    seen["wrong_key"] = refused(lambda: wrong.execute("1"))
    return seen


def refused(call):
    """What a client is told that is not served."""
    try:
        call()
    except requests.HTTPError as error:
        return [error.response.status_code, error.response.json()["error"]["code"]]
    return None


class Credential:
    """A credential, as `azure-identity` has them."""

    def __init__(self, key):
        self.key = key

    def get_token(self, *scopes, **more):
        """The key, as a token."""
        return AccessToken(self.key, FAR)


def double(n: int) -> int:
    """A function that code may call: its text is sent."""
    return 2 * n


async def autogen(endpoint, key, folder):
    """It asks for the installed packages before anything else."""
    token = CancellationToken()
    async with ACADynamicSessionsCodeExecutor(
        pool_management_endpoint=endpoint,
        credential=Credential(key),
        work_dir=folder,
        functions=[double],
        timeout=300,
    ) as executor:

        async def run(*codes):
            blocks = [CodeBlock(code=code, language="python") for code in codes]
            result = await executor.execute_code_blocks(blocks, token)
            return [result.exit_code, result.output]

        seen = {"ran": await run("x = double(10)", "print('out')\nx + 1")}
        seen["kept"] = await run("x")
        seen["failed"] = await run("1/0")
        seen["lacks"] = await run("! pip install no-such-package")
        await executor.upload_files(["given.txt"], token)
        seen["listed"] = await executor.get_file_list(token)
        seen["read"] = await run("open('given.txt').read()")
        await run("open('made.txt', 'w').write('from there')")
        await executor.download_files(["made.txt"], token)
        await executor.restart()
        seen["restarted"] = await run("'x' in globals()")
    return seen


def llama_index(endpoint, key, folder):
    """Its names of files are absolute."""
    tool = AzureCodeInterpreterToolSpec(endpoint, local_save_path=str(folder))
    tool.access_token = AccessToken(key, FAR)
    tool.code_interpreter("x = 20")
    seen = {"kept": tool.code_interpreter("x + 1")["properties"]["result"]}
    seen["failed"] = tool.code_interpreter("1/0")["properties"]
    seen["picture"] = tool.code_interpreter(PICTURE)["properties"]["result"]
    seen["saved"] = [path.read_text() for path in folder.glob("*.png")]
    [made] = tool.upload_file(local_file_path=str(folder / "given.txt"))
    seen["uploaded"] = [made.filename, made.size_in_bytes, made.file_full_path]
    seen["listed"] = [file.file_full_path for file in tool.list_files()]
    seen["downloaded"] = tool.download_file_to_local("/mnt/data/given.txt").read().decode()
    seen["absent"] = refused(lambda: tool.download_file_to_local("absent"))
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
