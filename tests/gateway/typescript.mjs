// A program that uses the TypeScript client: node typescript.mjs URL KEY AGENT ENVIRONMENT COUNT
// It says COUNT numbered things over a network that breaks, follows the log meanwhile, answers what is
// asked, and prints what it has seen.
import { Client, Refused } from "../../web/client/dist/index.js";

const [url, apiKey, agent, environmentId, count] = process.argv.slice(2);
const client = new Client({ url, apiKey, pauses: { first: 5, longest: 50 } });
const chat = client.session({ agent, environmentId, title: "From Node" }, { after: 0 });

for (let number = 0; number < Number(count); number += 5) {
  const burst = [0, 1, 2, 3, 4].map((more) => chat.send(`number ${number + more}`, `n-${number + more}`));
  await Promise.all(burst);
}
const script = [{ tool: "lookup", input: { what: "it" } }, { text: "Thank you." }];
const last = await chat.send(`SCRIPT${JSON.stringify(script)}`);

const types = new Set();
const seqs = [];
let twice = "";
for await (const message of chat) {
  types.add(message.type);
  if (message.type === "sdk_message") seqs.push(message.seq);
  if (message.type === "ask_user_question") {
    await chat.answer(message.requestId, { found: 42 });
    const again = await chat.answer(message.requestId, "another").catch((error) => error);
    twice = again instanceof Refused ? again.code : "";
  }
  if (message.type === "done" && message.seq > last.seq && twice) break;
}
chat.close();
console.log(JSON.stringify({ id: chat.id, seqs, types: [...types], twice, connections: chat.connections }));
