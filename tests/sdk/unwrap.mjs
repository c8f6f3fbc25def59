// What the official SDK makes of a webhook that was sent, and of the same with each of its bytes changed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.argv[2]}/`);
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));
const { headers, body, key } = JSON.parse(readFileSync(0, "utf8"));
const client = new Anthropic({ apiKey: "none", webhookKey: key });

const report = { about: client.beta.webhooks.unwrap(body, { headers }).data.type, changed: 0, accepted: [] };
for (let at = 0; at < body.length; at += 1) {
  const other = body.slice(0, at) + String.fromCharCode(body.charCodeAt(at) ^ 1) + body.slice(at + 1);
  report.changed += 1;
  try {
    client.beta.webhooks.unwrap(other, { headers });
    report.accepted.push(at);
  } catch (refused) {
    if (refused.name !== "WebhookVerificationError") throw refused;
  }
}
console.log(JSON.stringify(report));
