import { Button, Group, Radio, Stack, Switch, TagsInput, Text, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";

import { changes, useChange, useVaults } from "../api/hooks";
import type { Vault } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";
import { ago } from "../parts/words";

export function VaultsPage() {
  const [archived, setArchived] = useState(false);
  const vaults = useVaults(archived);
  return (
    <Page title="Vaults" actions={<FormButton label="New vault" title="New vault" form={() => <VaultForm />} />}>
      <Group mb="sm" justify="space-between">
        <Text size="sm" c="dimmed" flex="1 1 260px">
          Secrets that sessions use without seeing them. They are put on requests outside the sandbox.
        </Text>
        <Switch label="Archived too" checked={archived} onChange={(event) => setArchived(event.currentTarget.checked)} />
      </Group>
      <Loaded query={vaults}>
        {(found) => (
          <Things none="No vaults yet. A vault has tokens for MCP servers and for programs in the sandbox, or the key for a model.">
            {found.map((vault) => (
              <ThingCard
                key={vault.id}
                name={vault.display_name}
                to={`/vaults/${vault.id}`}
                archived={vault.archived_at !== null}
                about={<VaultFacts vault={vault} />}
                actions={<Actions vault={vault} />}
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

function Actions({ vault }: { vault: Vault }) {
  const archive = useChange("vaults", changes.archiveVault);
  const remove = useChange("vaults", changes.deleteVault);
  return (
    <>
      {vault.archived_at === null && (
        <SureButton
          label="Archive"
          title={`Archive ${vault.display_name}?`}
          says="Its secrets are removed for good. Sessions that have it go on without them; new ones cannot have it. This cannot be undone."
          yes="Archive it"
          act={(done) => archive.mutate(vault.id, { onSuccess: done })}
          busy={archive.isPending}
        />
      )}
      <SureButton
        label="Delete"
        title={`Delete ${vault.display_name}?`}
        says="The vault and its credentials are removed for good. Sessions that have it go on without them."
        yes="Delete the vault"
        act={(done) => remove.mutate(vault.id, { onSuccess: done })}
        busy={remove.isPending}
      />
    </>
  );
}

// The metadata that makes a vault the one with the key for a model. Those of sandbox0 count as well.
const ROLE = "roost.role";
const ENGINE = "roost.engine";
const BASE_URL = "roost.base_url";
const ALSO: Record<string, string> = {
  [ROLE]: "sandbox0.managed_agents.role",
  [ENGINE]: "sandbox0.managed_agents.engine",
  [BASE_URL]: "sandbox0.managed_agents.llm_base_url",
};
const noted = ({ metadata }: Vault, key: string) => metadata[key] ?? metadata[ALSO[key]!];

/** Whether the vault has the key for a model, and not credentials for an agent's tools. */
export const isForModel = (vault: Vault) => noted(vault, ROLE) === "llm";

/** What a vault is for, and what else was noted about it. */
export function VaultFacts({ vault }: { vault: Vault }) {
  const model = ["key for a model", noted(vault, ENGINE), noted(vault, BASE_URL)].filter((fact) => fact !== undefined);
  const known = Object.entries(ALSO).flat();
  const notes = Object.entries(vault.metadata).filter(([key]) => !known.includes(key));
  const facts = [...(isForModel(vault) ? model : ["credentials for tools"]), ...notes.map(([key, value]) => `${key}=${value}`), `made ${ago(vault.created_at)}`];
  return <span style={{ overflowWrap: "anywhere" }}>{facts.join(" · ")}</span>;
}

function VaultForm() {
  const navigate = useNavigate();
  const create = useChange("vaults", changes.createVault);
  const [name, setName] = useState("");
  const [use, setUse] = useState("tools");
  const [engine, setEngine] = useState("claude");
  const [address, setAddress] = useState("");
  const [notes, setNotes] = useState<string[]>([]);
  const unclear = notes.filter((note) => !/^[^=]+=/.test(note));

  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (unclear.length > 0) return;
    const model = { [ROLE]: "llm", [ENGINE]: engine.trim(), [BASE_URL]: address.trim() };
    const own = notes.map((note) => [note.slice(0, note.indexOf("=")).trim(), note.slice(note.indexOf("=") + 1).trim()]);
    const said = [...own, ...(use === "model" ? Object.entries(model) : [])].filter(([, value]) => value !== "");
    create.mutate({ display_name: name, metadata: Object.fromEntries(said) }, { onSuccess: ({ id }) => navigate(`/vaults/${id}`) });
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} maxLength={255} required data-autofocus />
        <Radio.Group label="What it is for" value={use} onChange={setUse}>
          <Stack gap="xs" mt={4}>
            <Radio value="tools" label="Credentials for tools" description="Tokens for MCP servers, and for programs in the sandbox." />
            <Radio value="model" label="Key for a model" description="Sessions with this vault ask their model with this key, and not with the server's own." />
          </Stack>
        </Radio.Group>
        {use === "model" && (
          <>
            <TextInput label="Engine" description="The program that works with this key." value={engine} onChange={(event) => setEngine(event.currentTarget.value)} required />
            <TextInput
              type="url"
              label="Base URL"
              description="Where the model is asked. Empty: at the server of the model's maker."
              placeholder="https://gateway.example.org"
              value={address}
              onChange={(event) => setAddress(event.currentTarget.value)}
            />
          </>
        )}
        <TagsInput
          label="Metadata"
          description="Notes of your own, such as team=web. No secrets: everyone who may see the vault can read them."
          error={unclear.length > 0 ? `Not of the form key=value: ${unclear.join(", ")}` : undefined}
          value={notes}
          onChange={setNotes}
        />
        <Button type="submit" loading={create.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}
