import { Autocomplete, Button, Group, Radio, Select, Stack, Switch, Text, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";

import { changes, useChange, useHarnesses, useSave, useVaults } from "../api/hooks";
import type { Vault } from "../api/types";
import { metadataOf, notesOf, NotesInput, patchOf, unclear } from "../parts/notes";
import { Loaded, Page } from "../parts/page";
import { FormButton, FormTrouble, SureButton, ThingCard, Things } from "../parts/resource";
import { useTroubles } from "../parts/trouble";
import { ALSO, BASE_URL, ENGINE, isForModel, KEY_HEADER, keyIn, KNOWN, noted, ROLE, VaultFacts } from "../parts/vault-facts";

export function VaultsPage() {
  const [archived, setArchived] = useState(false);
  const vaults = useVaults(archived);
  return (
    <Page title="Vaults" actions={<FormButton label="New vault" title="New vault" form={(done) => <VaultForm done={done} />} />}>
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
      <EditVault vault={vault} />
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

/** Its name and its metadata; an archived one stays as it is. */
export function EditVault({ vault }: { vault: Vault }) {
  if (vault.archived_at !== null) return null;
  return <FormButton variant="default" label="Edit" title={`Edit ${vault.display_name}`} form={(done) => <VaultForm vault={vault} done={done} />} />;
}

const HEADERS = [
  { value: "", label: "The usual one of the address" },
  { value: "x-api-key", label: "x-api-key" },
  { value: "bearer", label: "Authorization: Bearer" },
];
const FIELDS = {
  paths: {
    display_name: "name",
    metadata: "notes",
    ...Object.fromEntries(Object.entries({ [ENGINE]: "engine", [BASE_URL]: "address", [KEY_HEADER]: "header" }).flatMap(([key, field]) => [key, ALSO[key] ?? key].map((one) => [`metadata.${one}`, field]))),
  },
};

/** A new vault, or another name and other metadata for one that is there. */
function VaultForm({ vault, done }: { vault?: Vault; done: () => void }) {
  const navigate = useNavigate();
  const create = useSave("vaults", changes.createVault);
  const update = useSave("vaults", changes.updateVault);
  const harnesses = (useHarnesses().data ?? []).filter(({ available }) => available).map(({ name }) => name);
  const before = vault?.metadata ?? {};
  const [name, setName] = useState(vault?.display_name ?? "");
  const [use, setUse] = useState(vault && isForModel(vault) ? "model" : "tools");
  const [engine, setEngine] = useState((vault && noted(vault, ENGINE)) ?? "claude");
  const [address, setAddress] = useState((vault && noted(vault, BASE_URL)) ?? "");
  const [header, setHeader] = useState((vault && noted(vault, KEY_HEADER)) ?? "");
  const [notes, setNotes] = useState(notesOf(before, KNOWN));
  const { form, troubles } = useTroubles(create.error ?? update.error, FIELDS);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (unclear(notes) !== undefined) return;
    const model = Object.entries({ [ROLE]: "llm", [ENGINE]: engine.trim(), [BASE_URL]: address.trim(), [KEY_HEADER]: header }).map(([key, value]) => [keyIn(before, key), value]);
    const metadata = { ...metadataOf(notes), ...Object.fromEntries(use === "model" ? model.filter(([, value]) => value !== "") : []) };
    if (vault) update.mutate({ id: vault.id, display_name: name, metadata: patchOf(before, metadata) }, { onSuccess: done });
    else create.mutate({ display_name: name, metadata }, { onSuccess: ({ id }) => navigate(`/vaults/${id}`) });
  };

  return (
    <form ref={form} onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} maxLength={255} error={troubles.name} required data-autofocus />
        {vault === undefined && (
          <Radio.Group label="What it is for" value={use} onChange={setUse}>
            <Stack gap="xs" mt={4}>
              <Radio value="tools" label="Credentials for tools" description="Tokens for MCP servers, and for programs in the sandbox." />
              <Radio value="model" label="Key for a model" description="Sessions with this vault ask their model with this key, and not with the server's own. The key is added on the next page." />
            </Stack>
          </Radio.Group>
        )}
        {use === "model" && (
          <>
            <Autocomplete label="Engine" description="The harness of sessions with this vault, that is, the program that works as the agent: claude is Claude Code." data={harnesses} value={engine} onChange={setEngine} error={troubles.engine} required />
            <TextInput
              type="url"
              label="Base URL"
              description="Where the model is asked: a gateway, or a server of your own. Empty: at the API of the model's maker. It cannot be changed while the vault has a key."
              placeholder="https://gateway.example.org"
              value={address}
              onChange={(event) => setAddress(event.currentTarget.value)}
              error={troubles.address}
            />
            <Select
              label="Header with the key"
              description="Usual are x-api-key at Anthropic's own API, and a bearer everywhere else."
              data={HEADERS}
              value={header}
              onChange={(value) => setHeader(value ?? "")}
              error={troubles.header}
              allowDeselect={false}
            />
          </>
        )}
        <NotesInput of="vault" notes={notes} setNotes={setNotes} error={troubles.notes} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={create.isPending || update.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}
