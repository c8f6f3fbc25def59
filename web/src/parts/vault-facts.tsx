import type { Vault } from "../api/types";
import { notesOf } from "./notes";
import { ago } from "./words";

// The metadata that makes a vault the one with the key for a model. Those of sandbox0 count as well.
export const ROLE = "roost.role";
export const ENGINE = "roost.engine";
export const BASE_URL = "roost.base_url";
export const KEY_HEADER = "roost.key_header";
export const ALSO: Record<string, string> = {
  [ROLE]: "sandbox0.managed_agents.role",
  [ENGINE]: "sandbox0.managed_agents.engine",
  [BASE_URL]: "sandbox0.managed_agents.llm_base_url",
};
/** All of them: other metadata is notes. */
export const KNOWN = [...Object.entries(ALSO).flat(), KEY_HEADER];

/** The name under which a vault has one of these, or would get it. */
export const keyIn = (metadata: Record<string, string>, key: string) => (key in metadata || ALSO[key] === undefined || !(ALSO[key] in metadata) ? key : ALSO[key]);

/** What a vault says under one of them. */
export const noted = ({ metadata }: Vault, key: string) => metadata[keyIn(metadata, key)];

/** Whether the vault has the key for a model, and not credentials for an agent's tools. */
export const isForModel = (vault: Vault) => noted(vault, ROLE) === "llm";

/** What a vault is for, and what else was noted about it. */
export function VaultFacts({ vault }: { vault: Vault }) {
  const model = ["key for a model", ...[ENGINE, BASE_URL, KEY_HEADER].map((key) => noted(vault, key)).filter((fact) => fact !== undefined)];
  const facts = [...(isForModel(vault) ? model : ["credentials for tools"]), ...notesOf(vault.metadata, KNOWN), `made ${ago(vault.created_at)}`];
  return <span style={{ overflowWrap: "anywhere" }}>{facts.join(" · ")}</span>;
}
