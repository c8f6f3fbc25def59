/** What came of trying an OAuth token at its MCP server, in plain words. */

import type { CredentialValidation, HttpAnswer } from "../api/types";

export interface Verdict {
  colour: "teal" | "red" | "yellow";
  title: string;
  says: string;
}

const TITLES = {
  valid: { colour: "teal", title: "The token works" },
  invalid: { colour: "red", title: "The token does not work" },
  unknown: { colour: "yellow", title: "It is not known whether the token works" },
} as const;

export function verdictOf(found: CredentialValidation): Verdict {
  return { ...TITLES[found.status], says: saysOf(found) };
}

function saysOf({ status, mcp_probe, refresh }: CredentialValidation): string {
  if (status === "valid") return refresh?.status === "succeeded" ? "The MCP server had refused it, so it was renewed. It accepts the new one, which is stored." : "The MCP server accepts it.";
  const answer = mcp_probe?.http_response ?? null;
  if (answer === null) return "The MCP server could not be reached.";
  if (answer.status_code !== 401) return `The MCP server answered ${answered(answer)}.`;
  return `The MCP server does not accept it. ${renewalOf(refresh)}`;
}

function renewalOf(refresh: CredentialValidation["refresh"]): string {
  switch (refresh?.status) {
    case "succeeded":
      return "Nor does it accept the one that it was renewed to.";
    case "connect_error":
      return "It could not be renewed: the token endpoint could not be reached.";
    case "failed":
      return `It could not be renewed: the token endpoint answered ${answered(refresh.http_response)}.`;
    default:
      return "There is no refresh token to renew it with.";
  }
}

const LONGEST = 200;

function answered(answer: HttpAnswer | null): string {
  if (answer === null) return "nothing";
  const body = answer.body.replace(/\s+/g, " ").trim();
  return body === "" ? `${answer.status_code}` : `${answer.status_code}: ${body.slice(0, LONGEST)}${body.length > LONGEST ? "…" : ""}`;
}
