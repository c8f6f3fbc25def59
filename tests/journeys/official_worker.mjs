// The official worker, unchanged: `official_worker.mjs URL ENVIRONMENT_ID DIRECTORY SDK_FOLDER`.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [baseURL, environmentId, workdir, folder] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));
const client = new Anthropic({ baseURL, apiKey: "unused" });
const environmentKey = process.env.ANTHROPIC_ENVIRONMENT_KEY;
await client.beta.environments.work.worker({ environmentId, environmentKey, workdir, maxIdleMs: 1000 }).run();
