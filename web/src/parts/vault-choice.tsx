import { MultiSelect } from "@mantine/core";

import { useVaults } from "../api/hooks";
import { isForModel } from "./vault-facts";

/** Which vaults a session is to have: those that are in use, if there are any. */
export function VaultChoice({ chosen, setChosen, error }: { chosen: string[]; setChosen: (ids: string[]) => void; error?: string }) {
  const vaults = useVaults(false).data ?? [];
  const account = chosen.map((id) => vaults.find((vault) => vault.id === id)).find((vault) => vault !== undefined && isForModel(vault));
  const about = "Their secrets are used in this session, and never seen in it. If two vaults have one for the same purpose, the vault that was chosen first counts.";
  if (vaults.length === 0) return null;
  return (
    <MultiSelect
      label="Credential vaults"
      description={account === undefined ? about : `${about} The model is asked with the key of ${account.display_name}, and not with the server's own.`}
      data={vaults.map((vault) => ({ value: vault.id, label: isForModel(vault) ? `${vault.display_name} (key for a model)` : vault.display_name }))}
      value={chosen}
      onChange={setChosen}
      error={error}
      searchable
    />
  );
}
