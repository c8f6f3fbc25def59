/** An agent's built-in tools, and what it may do with them unasked. */

import type { Agent, Toolset } from "../api/types";

const TOOLSET = "agent_toolset_20260401";

export const POLICIES = [
  { value: "auto", label: "Asks before it changes anything" },
  { value: "always_ask", label: "Asks before every tool" },
  { value: "always_allow", label: "Runs its tools by itself" },
  { value: "none", label: "No built-in tools" },
];

export function hasTools(agent: Agent): boolean {
  return agent.tools.length > 0;
}

export function policyOf(agent: Agent): string {
  const toolset = agent.tools.find((one) => one.type === TOOLSET);
  return toolset === undefined ? "none" : (toolset.default_config?.permission_policy.type ?? "always_allow");
}

export function policyLabel(agent: Agent): string {
  const label = POLICIES.find(({ value }) => value === policyOf(agent))?.label.toLowerCase() ?? "";
  const free = policyOf(agent) === "always_ask" ? freeTools(agent) : [];
  return free.length > 0 ? `${label} except ${free.join(", ")}` : label;
}

/** The built-in tools that are allowed by name, whatever holds for the others. */
function freeTools(agent: Agent): string[] {
  const configs = agent.tools.find((one) => one.type === TOOLSET)?.configs ?? [];
  return configs.filter((one) => one.enabled && one.permission_policy.type === "always_allow").map(({ name }) => name);
}

/** The tools with another policy for the built-in ones; whatever else the agent has stays. */
export function withPolicy(tools: Toolset[], policy: string): unknown[] {
  const others = tools.filter((one) => one.type !== TOOLSET);
  if (policy === "none") return others;
  const built = tools.find((one) => one.type === TOOLSET) ?? { type: TOOLSET };
  return [{ ...built, default_config: { enabled: true, permission_policy: { type: policy } } }, ...others];
}
