"""One journey with the official Python SDK, whichever version runs this; prints what it saw as JSON.

    python journey.py BASE_URL API_KEY

It is what a user's program looks like: nothing here knows of Roost but the base URL.
"""

import inspect
import json
import sys

import anthropic

SLOW = 'SCRIPT[{"text": "%s", "chunk_delay": 0.1}]' % ("word " * 200)


def main(base_url, key):
    client = anthropic.Anthropic(base_url=base_url, api_key=key, max_retries=0)
    agent = client.beta.agents.create(name="Traveller", model="claude-opus-5-5", system="Be brief.")
    environment = client.beta.environments.create(
        name=f"env for {anthropic.__version__}",
        config={"type": "cloud", "networking": {"type": "unrestricted"}},
    )
    session = client.beta.sessions.create(
        agent=agent.id, environment_id=environment.id, title="A journey"
    )
    report = {"version": anthropic.__version__, "created": session.status}
    report["sent_first"] = send_then_stream(client, session.id, "Hello, I am the first message")
    report["streamed_first"] = stream_then_send(client, session.id, "And I am the second")
    report["interrupted"] = interrupted(client, session.id)
    events = list(client.beta.sessions.events.list(session.id, limit=3))
    report["listed"] = [event.type for event in events]
    report["texts"] = [event.content[0].text for event in events if event.type == "agent.message"]
    report["ids"] = len({event.id for event in events})
    report["newest"] = next(iter(client.beta.sessions.events.list(session.id, order="desc"))).type
    report["found"] = session.id in [s.id for s in client.beta.sessions.list()]
    report["idle"] = client.beta.sessions.retrieve(session.id).status
    report["archived"] = client.beta.sessions.archive(session.id).status
    report["refused"] = refusal(client, session.id)
    report["files"] = files(client)
    report["vaults"] = vaults(client)
    report["deployments"] = deployments(client, agent.id, environment.id)
    print(json.dumps(report))


def files(client):
    """Each version asks for lists in its own form."""
    made = [client.beta.files.upload(file=(f"{i}.txt", b"hello")).id for i in range(3)]
    listed = [file.id for file in client.beta.files.list(limit=2)]
    content = client.beta.files.download(made[0]).read().decode()
    name = client.beta.files.retrieve_metadata(made[0]).filename
    for file_id in made:
        client.beta.files.delete(file_id)
    return {"listed": listed == made[::-1], "content": content, "name": name}


AUTHS = [
    {"type": "static_bearer", "mcp_server_url": "https://mcp.example/mcp", "token": "t"},
    {
        "type": "environment_variable",
        "secret_name": "TOKEN",
        "secret_value": "v",
        "networking": {"type": "limited", "allowed_hosts": ["api.example"]},
    },
    {
        "type": "mcp_oauth",
        "mcp_server_url": "http://127.0.0.1:9/mcp",
        "access_token": "a",
        "expires_at": "2099-01-31T12:00:00Z",
        "refresh": {
            "client_id": "c",
            "refresh_token": "r",
            "token_endpoint": "http://127.0.0.1:9/token",
            "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "s"},
        },
    },
]


def vaults(client):
    """Every operation on vaults and credentials."""
    vaults = client.beta.vaults
    vault = vaults.create(display_name="mine", metadata={"a": "b"})
    vaults.update(vault.id, display_name="ours")
    made = [vaults.credentials.create(auth=auth, vault_id=vault.id) for auth in AUTHS]
    same = lambda: vaults.credentials.create(auth=AUTHS[0], vault_id=vault.id)  # noqa: E731
    report = {"name": vaults.retrieve(vault.id).display_name, "conflict": status_of(same)}
    for credential, field in zip(made, ("token", "secret_value", "access_token")):  # noqa: B905
        auth = {"type": credential.auth.type, field: "new"}
        vaults.credentials.update(credential.id, vault_id=vault.id, auth=auth)
    other = {"type": "mcp_oauth", "access_token": "x"}
    report["other_type"] = status_of(
        lambda: vaults.credentials.update(made[0].id, vault_id=vault.id, auth=other)
    )
    listed = list(vaults.credentials.list(vault.id, limit=2))
    report["types"] = [credential.auth.type for credential in listed]
    tried = vaults.credentials.mcp_oauth_validate(made[2].id, vault_id=vault.id)
    report["validation"] = [tried.type, tried.status, tried.has_refresh_token]
    vaults.credentials.archive(made[0].id, vault_id=vault.id)
    again = vaults.credentials.retrieve(made[0].id, vault_id=vault.id)
    report["one_archived"] = again.archived_at is not None
    report["one_deleted"] = vaults.credentials.delete(made[1].id, vault_id=vault.id).type
    report["archived"] = vaults.archive(vault.id).archived_at is not None
    every = vaults.credentials.list(vault.id, include_archived=True)
    report["with_it"] = all(credential.archived_at for credential in every)
    report["listed"] = vault.id in [each.id for each in vaults.list(include_archived=True)]
    report["deleted"] = vaults.delete(vault.id).type
    report["gone"] = status_of(lambda: vaults.retrieve(vault.id))
    return report


class Walked:
    """A resource of the SDK that notes which of its operations are used."""

    def __init__(self, resource):
        self._resource = resource
        methods = inspect.getmembers(type(resource), inspect.isfunction)
        self.left = {name for name, _ in methods if not name.startswith("_")}
        self.used = set()

    def __getattr__(self, name):
        self.used.add(name)
        self.left.discard(name)
        return getattr(self._resource, name)


def deployments(client, agent_id, environment_id):
    """Every operation on deployments and their runs."""
    deployments, runs = Walked(client.beta.deployments), Walked(client.beta.deployment_runs)
    made = deployments.create(
        name="daily",
        agent=agent_id,
        environment_id=environment_id,
        initial_events=message("Hello"),
        schedule={"type": "cron", "expression": "0 9 * * 1-5", "timezone": "Europe/Berlin"},
    )
    report = {"status": made.status, "upcoming": len(made.schedule.upcoming_runs_at)}
    report["name"] = deployments.update(made.id, name="weekly").name
    report["paused"] = deployments.pause(made.id).paused_reason.type
    report["listed"] = [each.id for each in deployments.list(status="paused")] == [made.id]
    run = deployments.run(made.id)
    report["run"] = [
        run.trigger_context.type,
        run.error,
        runs.retrieve(run.id).session_id == run.session_id,
    ]
    report["runs"] = [each.id for each in runs.list(deployment_id=made.id, limit=1)] == [run.id]
    session = client.beta.sessions.retrieve(run.session_id)
    report["session"] = session.deployment_id == made.id
    report["unpaused"] = deployments.unpause(made.id).status
    wrong = {"type": "cron", "expression": "@daily", "timezone": "UTC"}
    report["wrong"] = status_of(lambda: deployments.update(made.id, schedule=wrong))
    report["archived"] = deployments.archive(made.id).archived_at is not None
    report["ended"] = deployments.retrieve(made.id).schedule.upcoming_runs_at
    report["walked"] = [sorted(deployments.used), sorted(runs.used)]
    report["left"] = sorted(deployments.left | runs.left)
    return report


def status_of(call):
    try:
        call()
    except anthropic.APIStatusError as error:
        return error.status_code
    raise AssertionError("it was not refused")


def message(text):
    return [{"type": "user.message", "content": [{"type": "text", "text": text}]}]


def send_then_stream(client, session_id, text):
    """As the official examples do it."""
    client.beta.sessions.events.send(session_id, events=message(text))
    with client.beta.sessions.events.stream(session_id) as stream:
        return until_idle(stream)


def stream_then_send(client, session_id, text):
    """As the documentation advises."""
    with client.beta.sessions.events.stream(session_id) as stream:
        client.beta.sessions.events.send(session_id, events=message(text))
        return until_idle(stream)


def interrupted(client, session_id):
    with client.beta.sessions.events.stream(session_id) as stream:
        client.beta.sessions.events.send(session_id, events=message(SLOW))
        seen = []
        for event in stream:
            seen.append(event.type)
            if event.type == "span.model_request_start":
                client.beta.sessions.events.send(session_id, events=[{"type": "user.interrupt"}])
            if event.type == "session.status_idle":
                return {"seen": seen, "stop_reason": event.stop_reason.type}
    raise AssertionError("the stream ended before the session was idle")


def until_idle(stream):
    seen, text = [], ""
    for event in stream:
        seen.append(event.type)
        if event.type == "agent.message":
            text += event.content[0].text
        if event.type == "session.status_idle":
            return {"seen": seen, "text": text, "stop_reason": event.stop_reason.type}
    raise AssertionError("the stream ended before the session was idle")


def refusal(client, session_id):
    try:
        client.beta.sessions.events.send(session_id, events=message("too late"))
    except anthropic.BadRequestError as error:
        return {"status": error.status_code, "request_id": error.request_id, "body": error.body}
    raise AssertionError("an archived session took a message")


if __name__ == "__main__":
    main(*sys.argv[1:])
