import { expect, it } from "vitest";

import type { Agent } from "../api/types";
import { policyLabel } from "./tools";

const policy = (type: string) => ({ enabled: true, permission_policy: { type } });
const agent = (...tools: object[]) => ({ tools }) as unknown as Agent;
const toolset = (type: string, free: string[] = []) => ({
  type: "agent_toolset_20260401",
  default_config: policy(type),
  configs: free.map((name) => ({ name, ...policy("always_allow") })),
});

it.each([
  [agent(), "no built-in tools"],
  [agent(toolset("always_ask")), "asks before every tool"],
  [agent(toolset("always_ask", ["read", "grep"])), "asks before every tool except read, grep"],
  [agent(toolset("always_allow", ["read"])), "runs its tools by itself"],
])("an agent's card says what it may do unasked (%#)", (one, said) => {
  expect(policyLabel(one)).toBe(said);
});
