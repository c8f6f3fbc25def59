// The journey of journey.py with the official TypeScript SDK; run from a folder that has it installed.
//   node journey.mjs BASE_URL API_KEY SDK_FOLDER
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [baseURL, apiKey, folder] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));
const { version } = JSON.parse(readFileSync(`${folder}/node_modules/@anthropic-ai/sdk/package.json`));

const SLOW = `SCRIPT[{"text": "${"word ".repeat(200)}", "chunk_delay": 0.1}]`;
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const { sessions } = client.beta;

const message = (text) => [{ type: "user.message", content: [{ type: "text", text }] }];

async function untilIdle(stream) {
  const seen = [];
  let text = "";
  for await (const event of stream) {
    seen.push(event.type);
    if (event.type === "agent.message") text += event.content[0].text;
    if (event.type === "session.status_idle") return { seen, text, stop_reason: event.stop_reason.type };
  }
}

async function sendThenStream(id, text) {
  await sessions.events.send(id, { events: message(text) });
  return untilIdle(await sessions.events.stream(id));
}

async function streamThenSend(id, text) {
  const stream = await sessions.events.stream(id);
  await sessions.events.send(id, { events: message(text) });
  return untilIdle(stream);
}

async function interrupted(id) {
  const stream = await sessions.events.stream(id);
  await sessions.events.send(id, { events: message(SLOW) });
  const seen = [];
  for await (const event of stream) {
    seen.push(event.type);
    if (event.type === "span.model_request_start") {
      await sessions.events.send(id, { events: [{ type: "user.interrupt" }] });
    }
    if (event.type === "session.status_idle") return { seen, stop_reason: event.stop_reason.type };
  }
}

async function refusal(id) {
  try {
    await sessions.events.send(id, { events: message("too late") });
  } catch (error) {
    if (!(error instanceof Anthropic.BadRequestError)) throw error;
    return { status: error.status, request_id: error.requestID ?? error.request_id, body: error.error };
  }
}

// Every operation on vaults and credentials.
async function vaultsWalked() {
  const vaults = client.beta.vaults;
  const auths = [
    { type: "static_bearer", mcp_server_url: "https://mcp.example/mcp", token: "t" },
    {
      type: "environment_variable",
      secret_name: "TOKEN",
      secret_value: "v",
      networking: { type: "limited", allowed_hosts: ["api.example"] },
    },
    {
      type: "mcp_oauth",
      mcp_server_url: "http://127.0.0.1:9/mcp",
      access_token: "a",
      expires_at: "2099-01-31T12:00:00Z",
      refresh: {
        client_id: "c",
        refresh_token: "r",
        token_endpoint: "http://127.0.0.1:9/token",
        token_endpoint_auth: { type: "client_secret_post", client_secret: "s" },
      },
    },
  ];
  const vault = await vaults.create({ display_name: "mine", metadata: { a: "b" } });
  const of = { vault_id: vault.id };
  await vaults.update(vault.id, { display_name: "ours" });
  const made = [];
  for (const auth of auths) made.push(await vaults.credentials.create(vault.id, { auth }));
  const walked = { name: (await vaults.retrieve(vault.id)).display_name };
  walked.conflict = await statusOf(vaults.credentials.create(vault.id, { auth: auths[0] }));
  for (const [i, field] of ["token", "secret_value", "access_token"].entries())
    await vaults.credentials.update(made[i].id, { ...of, auth: { type: auths[i].type, [field]: "new" } });
  const other = { type: "mcp_oauth", access_token: "x" };
  walked.other_type = await statusOf(vaults.credentials.update(made[0].id, { ...of, auth: other }));
  walked.types = (await all(vaults.credentials.list(vault.id, { limit: 2 }))).map((each) => each.auth.type);
  const tried = await validated(vault.id, made[2].id);
  walked.validation = [tried.type, tried.status, tried.has_refresh_token];
  await vaults.credentials.archive(made[0].id, of);
  walked.one_archived = (await vaults.credentials.retrieve(made[0].id, of)).archived_at != null;
  walked.one_deleted = (await vaults.credentials.delete(made[1].id, of)).type;
  walked.archived = (await vaults.archive(vault.id)).archived_at != null;
  const every = await all(vaults.credentials.list(vault.id, { include_archived: true }));
  walked.with_it = every.every((each) => each.archived_at);
  walked.listed = (await all(vaults.list({ include_archived: true }))).some((each) => each.id === vault.id);
  walked.deleted = (await vaults.delete(vault.id)).type;
  walked.gone = await statusOf(vaults.retrieve(vault.id));
  return walked;
}

// A resource of the SDK, which operations of it are used, and which are left.
function noted(resource) {
  const left = new Set(Object.getOwnPropertyNames(Object.getPrototypeOf(resource)));
  left.delete("constructor");
  const used = new Set();
  const use = (name) => (used.add(name), left.delete(name), resource[name].bind(resource));
  return [new Proxy(resource, { get: (_, name) => use(name) }), used, left];
}

// Every operation on deployments and their runs; older versions have none.
async function deploymentsWalked(agentId, environmentId) {
  if (!client.beta.deployments) return null;
  const [deployments, used, left] = noted(client.beta.deployments);
  const [runs, usedOfRuns, leftOfRuns] = noted(client.beta.deploymentRuns);
  const made = await deployments.create({
    name: "daily",
    agent: agentId,
    environment_id: environmentId,
    initial_events: message("Hello"),
    schedule: { type: "cron", expression: "0 9 * * 1-5", timezone: "Europe/Berlin" },
  });
  const walked = { status: made.status, upcoming: made.schedule.upcoming_runs_at.length };
  walked.name = (await deployments.update(made.id, { name: "weekly" })).name;
  walked.paused = (await deployments.pause(made.id)).paused_reason.type;
  const paused = await all(deployments.list({ status: "paused" }));
  walked.listed = paused.length === 1 && paused[0].id === made.id;
  const run = await deployments.run(made.id);
  const again = await runs.retrieve(run.id);
  walked.run = [run.trigger_context.type, run.error, again.session_id === run.session_id];
  const listed = await all(runs.list({ deployment_id: made.id, limit: 1 }));
  walked.runs = listed.length === 1 && listed[0].id === run.id;
  walked.session = (await sessions.retrieve(run.session_id)).deployment_id === made.id;
  walked.unpaused = (await deployments.unpause(made.id)).status;
  const wrong = { type: "cron", expression: "@daily", timezone: "UTC" };
  walked.wrong = await statusOf(deployments.update(made.id, { schedule: wrong }));
  walked.archived = (await deployments.archive(made.id)).archived_at != null;
  walked.ended = (await deployments.retrieve(made.id)).schedule.upcoming_runs_at;
  walked.walked = [[...used].sort(), [...usedOfRuns].sort()];
  walked.left = [...left, ...leftOfRuns].sort();
  return walked;
}

// Older versions have no method for it.
async function validated(vaultId, id) {
  const credentials = client.beta.vaults.credentials;
  if (credentials.mcpOAuthValidate) return credentials.mcpOAuthValidate(id, { vault_id: vaultId });
  const headers = { "anthropic-beta": "managed-agents-2026-04-01" };
  return client.post(`/v1/vaults/${vaultId}/credentials/${id}/mcp_oauth_validate`, { headers });
}

async function statusOf(promise) {
  try {
    await promise;
  } catch (error) {
    return error.status;
  }
}

async function all(pages) {
  const found = [];
  for await (const item of pages) found.push(item);
  return found;
}

const agent = await client.beta.agents.create({ name: "Traveller", model: "claude-opus-5-5", system: "Be brief." });
const environment = await client.beta.environments.create({
  name: `env for TypeScript ${version}`,
  config: { type: "cloud", networking: { type: "unrestricted" } },
});
const session = await sessions.create({ agent: agent.id, environment_id: environment.id, title: "A journey" });
const report = { version, created: session.status };
report.sent_first = await sendThenStream(session.id, "Hello, I am the first message");
report.streamed_first = await streamThenSend(session.id, "And I am the second");
report.interrupted = await interrupted(session.id);
const events = await all(sessions.events.list(session.id, { limit: 3 }));
report.listed = events.map((event) => event.type);
report.texts = events.filter((event) => event.type === "agent.message").map((event) => event.content[0].text);
report.ids = new Set(events.map((event) => event.id)).size;
report.newest = (await sessions.events.list(session.id, { order: "desc" })).data[0].type;
report.found = (await all(sessions.list())).some((other) => other.id === session.id);
report.idle = (await sessions.retrieve(session.id)).status;
report.archived = (await sessions.archive(session.id)).status;
report.refused = await refusal(session.id);
report.vaults = await vaultsWalked();
report.deployments = await deploymentsWalked(agent.id, environment.id);
console.log(JSON.stringify(report));
