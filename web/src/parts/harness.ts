/** What an agent program cannot do, in words. */

import type { Harness } from "../api/types";

const CANNOT: Record<string, string> = {
  approvals: "ask before it uses a tool",
  questions: "ask questions",
  custom_tools: "use tools of other programs",
  skills: "use skills",
  mcp: "use MCP servers",
  files: "read documents in messages",
  images: "see images in messages",
  subagents: "start subagents",
  interrupts: "be interrupted",
  deltas: "show text while it is written",
  effort: "be given an effort",
  budget: "have a budget",
  fork: "be forked",
  rewind: "be rewound",
};

/** A sentence for the person who chooses one; nothing if there is nothing to say. */
export function lacksOf(harness: Harness | undefined): string | undefined {
  const lacks = Object.entries(CANNOT).filter(([ability]) => harness?.abilities?.[ability] === false);
  return lacks.length === 0 ? undefined : `It cannot ${lacks.map(([, words]) => words).join(", ")}.`;
}
