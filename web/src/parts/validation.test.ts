import { expect, it } from "vitest";

import type { CredentialValidation } from "../api/types";
import { verdictOf } from "./validation";

const answer = (status_code: number, body = "") => ({ status_code, body });
const probe = (http_response: ReturnType<typeof answer> | null) => ({ http_response });
const renewal = (status: "succeeded" | "failed" | "connect_error" | "no_refresh_token", http_response = null as ReturnType<typeof answer> | null) => ({ status, http_response });

const CASES: [CredentialValidation["status"], CredentialValidation["mcp_probe"], CredentialValidation["refresh"], RegExp][] = [
  ["valid", null, null, /^The MCP server accepts it\.$/],
  ["valid", null, renewal("succeeded"), /renewed\. It accepts the new one/],
  ["invalid", probe(answer(401)), renewal("no_refresh_token"), /does not accept it\. There is no refresh token/],
  ["invalid", probe(answer(401)), renewal("failed", answer(400, '{"error":\n "invalid_grant"}')), /answered 400: \{"error": "invalid_grant"\}\.$/],
  ["invalid", probe(answer(401)), renewal("succeeded"), /Nor does it accept the one/],
  ["unknown", probe(answer(401)), renewal("connect_error"), /token endpoint could not be reached/],
  ["unknown", probe(answer(503)), null, /^The MCP server answered 503\.$/],
  ["unknown", probe(null), null, /^The MCP server could not be reached\.$/],
];

it.each(CASES)("%s is said in plain words", (status, mcp_probe, refresh, says) => {
  expect(verdictOf({ status, mcp_probe, refresh, validated_at: "2027-01-31T12:00:00Z" }).says).toMatch(says);
});
