import { Alert, Anchor, Button, Checkbox, Group, Radio, Select, Stack, Switch, TagsInput, Text, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { Link, useParams } from "react-router";

import { changes, useChange, useCredentials, useVault } from "../api/hooks";
import { isGone } from "../api/http";
import type { CredentialAuth, Vault, VaultCredential } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";
import { ago } from "../parts/words";
import { NotFoundPage } from "./not-found";
import { isForModel, VaultFacts } from "./vaults";

export function VaultPage() {
  const { id = "" } = useParams();
  const vault = useVault(id);
  if (isGone(vault.error)) return <NotFoundPage />;
  return <Loaded query={vault}>{(found) => <VaultView vault={found} />}</Loaded>;
}

function VaultView({ vault }: { vault: Vault }) {
  const credentials = useCredentials(vault.id);
  const add = <FormButton label="New credential" title="New credential" form={(done) => <CredentialForm vault={vault} done={done} />} />;
  return (
    <Page title={vault.display_name} actions={vault.archived_at === null && add}>
      <Stack>
        <Text size="sm" c="dimmed">
          <VaultFacts vault={vault} /> · <Anchor component={Link} to="/vaults" inherit underline="always">all vaults</Anchor>
        </Text>
        {vault.archived_at !== null && <Alert color="gray" title="This vault is archived">Its secrets are gone, and new sessions cannot have it.</Alert>}
        <Loaded query={credentials}>
          {(found) => (
            <Things none="No credentials yet.">
              {found.map((credential) => (
                <ThingCard
                  key={credential.id}
                  name={credential.display_name ?? purposeOf(credential.auth)}
                  archived={credential.archived_at !== null}
                  about={<About credential={credential} />}
                  actions={<Actions credential={credential} />}
                />
              ))}
            </Things>
          )}
        </Loaded>
      </Stack>
    </Page>
  );
}

/** What a credential is for: a server, a variable, or a model. */
function purposeOf(auth: CredentialAuth): string {
  if (auth.type === "environment_variable") return auth.secret_name;
  return auth.mcp_server_url || "The model";
}

function kindOf(auth: CredentialAuth): string {
  if (auth.type === "environment_variable") return "variable";
  if (auth.type === "mcp_oauth") return "OAuth token for an MCP server";
  return auth.mcp_server_url ? "token for an MCP server" : "key for a model";
}

function About({ credential }: { credential: VaultCredential }) {
  const { auth, display_name, created_at, updated_at } = credential;
  const facts = [
    kindOf(auth),
    ...(display_name === null ? [] : [`for ${purposeOf(auth)}`]),
    ...(auth.type === "environment_variable" ? [reachOf(auth)] : []),
    ...(auth.type === "mcp_oauth" ? [renewalOf(auth)] : []),
    `made ${ago(created_at)}`,
    ...(updated_at === created_at ? [] : [`changed ${ago(updated_at)}`]),
  ];
  return <span style={{ overflowWrap: "anywhere" }}>{facts.join(" · ")}</span>;
}

function reachOf({ networking, injection_location }: CredentialAuth & { type: "environment_variable" }): string {
  const parts = [injection_location.header && "headers", injection_location.body && "bodies"].filter(Boolean).join(" and ");
  const hosts = networking.type === "limited" ? (networking.allowed_hosts ?? []).join(", ") || "no host" : "every host";
  return `sent to ${hosts} in ${parts}`;
}

function renewalOf({ refresh, expires_at }: CredentialAuth & { type: "mcp_oauth" }): string {
  if (refresh !== null) return "renewed by itself";
  return expires_at === null ? "not renewed" : `expires ${new Date(expires_at).toLocaleString()}`;
}

function Actions({ credential }: { credential: VaultCredential }) {
  const archive = useChange("vault", changes.archiveCredential);
  const remove = useChange("vault", changes.deleteCredential);
  const name = credential.display_name ?? purposeOf(credential.auth);
  return (
    <>
      {credential.archived_at === null && (
        <>
          <FormButton variant="default" label="Replace" title={`Replace the secret of ${name}`} form={(done) => <ReplaceForm credential={credential} done={done} />} />
          <SureButton
            label="Archive"
            title={`Archive ${name}?`}
            says="Its secret is removed for good. Sessions that run go on without it. This cannot be undone; another credential can be made."
            yes="Archive it"
            act={(done) => archive.mutate(credential, { onSuccess: done })}
            busy={archive.isPending}
          />
        </>
      )}
      <SureButton
        label="Delete"
        title={`Delete ${name}?`}
        says="The credential is removed for good, and its secret with it. Sessions that run go on without it."
        yes="Delete the credential"
        act={(done) => remove.mutate(credential, { onSuccess: done })}
        busy={remove.isPending}
      />
    </>
  );
}

/** A secret goes in and does not come back. It is in the field alone, not in what React keeps or writes to the page. */
function SecretInput({ name, label, description, required = true }: { name: string; label: string; description?: string; required?: boolean }) {
  return <TextInput type="password" name={name} label={label} description={description} required={required} autoComplete="off" spellCheck={false} />;
}

/** What was typed into a field, and whether there was anything. */
const typed = (form: FormData, name: string) => String(form.get(name) ?? "").trim();
const secret = (form: FormData, name: string) => String(form.get(name) ?? ""); // as it is: it may begin with a space
const some = (fields: Record<string, string>) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== ""));
const moment = (form: FormData, name: string) => (typed(form, name) === "" ? null : new Date(typed(form, name)).toISOString());

type Kind = "variable" | "bearer" | "oauth" | "model";
const KINDS: { value: Kind; label: string; description: string }[] = [
  { value: "variable", label: "A variable", description: "Programs in the sandbox find a placeholder in it, which becomes the secret in their requests." },
  { value: "bearer", label: "A token for an MCP server", description: "Put on the requests of agents that use this server." },
  { value: "oauth", label: "An OAuth token for an MCP server", description: "It can be renewed by itself, with a refresh token." },
];

function CredentialForm({ vault, done }: { vault: Vault; done: () => void }) {
  const create = useChange("vault", changes.createCredential);
  const model = isForModel(vault);
  const [kind, setKind] = useState<Kind>(model ? "model" : "variable");
  const [reach, setReach] = useState("limited");
  const [hosts, setHosts] = useState<string[]>([]);
  const [parts, setParts] = useState(["header"]);
  const [renewed, setRenewed] = useState(false);
  const [client, setClient] = useState("none");

  const authOf = (form: FormData): Record<string, unknown> => {
    if (kind === "variable") {
      const networking = reach === "limited" ? { type: reach, allowed_hosts: hosts } : { type: reach };
      const injection_location = { header: parts.includes("header"), body: parts.includes("body") };
      return { type: "environment_variable", secret_name: typed(form, "variable"), secret_value: secret(form, "secret"), networking, injection_location };
    }
    if (kind === "model") return { type: "static_bearer", token: secret(form, "secret") };
    const mcp_server_url = typed(form, "server");
    if (kind === "bearer") return { type: "static_bearer", mcp_server_url, token: secret(form, "secret") };
    const refresh = {
      refresh_token: secret(form, "refresh_token"),
      token_endpoint: typed(form, "token_endpoint"),
      client_id: typed(form, "client_id"),
      token_endpoint_auth: { type: client, ...some({ client_secret: secret(form, "client_secret") }) },
      ...some({ scope: typed(form, "scope"), resource: typed(form, "resource") }),
    };
    return { type: "mcp_oauth", mcp_server_url, access_token: secret(form, "secret"), expires_at: moment(form, "expires_at"), ...(renewed ? { refresh } : {}) };
  };

  // Said when somebody saves, and until they save again: what moves under a finger is missed.
  const [trouble, setTrouble] = useState<string>();
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const homeless = kind === "variable" && reach === "limited" && hosts.length === 0;
    setTrouble(homeless ? "Name at least one host." : undefined);
    if (homeless || (kind === "variable" && parts.length === 0)) return;
    const field = event.currentTarget;
    const form = new FormData(field);
    const saved = () => {
      field.reset(); // no secret outlives its being saved
      done();
    };
    create.mutate({ vault: vault.id, auth: authOf(form), ...some({ display_name: typed(form, "name") }) }, { onSuccess: saved });
  };

  return (
    <form onSubmit={submit} autoComplete="off">
      <Stack>
        {!model && (
          <Radio.Group label="What it is" value={kind} onChange={(value) => setKind(value as Kind)}>
            <Stack gap="xs" mt={4}>
              {KINDS.map((one) => (
                <Radio key={one.value} {...one} />
              ))}
            </Stack>
          </Radio.Group>
        )}
        {(kind === "bearer" || kind === "oauth") && <TextInput type="url" name="server" label="Address of the MCP server" placeholder="https://mcp.example.org/mcp" required />}
        {kind === "variable" && <TextInput name="variable" label="Variable" placeholder="GITHUB_TOKEN" pattern="[A-Za-z_][A-Za-z0-9_]*" title="Letters, digits and _" required />}
        <SecretInput key={kind} name="secret" label={SECRET_WORDS[kind]} description="It cannot be looked at afterwards, only replaced." />
        {kind === "variable" && (
          <>
            <Radio.Group label="Where it may be sent" value={reach} onChange={setReach}>
              <Stack gap="xs" mt={4}>
                <Radio value="limited" label="Only to the hosts below" />
                <Radio value="unrestricted" label="To every host that the session reaches" description="The proxy then opens the encryption of all of them." />
              </Stack>
            </Radio.Group>
            {reach === "limited" && (
              <TagsInput label="Hosts" placeholder="api.example.org, *.example.org" value={hosts} onChange={setHosts} error={trouble} />
            )}
            <Checkbox.Group label="Where in a request" value={parts} onChange={setParts} error={parts.length === 0 ? "Choose at least one." : undefined}>
              <Stack gap="xs" mt={4}>
                <Checkbox value="header" label="In headers" />
                <Checkbox value="body" label="In bodies" description="An agent can then post the secret as content to such a host, and read it there." />
              </Stack>
            </Checkbox.Group>
          </>
        )}
        {kind === "oauth" && <OAuthFields renewed={renewed} setRenewed={setRenewed} client={client} setClient={setClient} />}
        <TextInput name="name" label="Name" description="What to call it here. Empty: by what it is for." maxLength={255} />
        <Button type="submit" loading={create.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

const SECRET_WORDS: Record<Kind, string> = { variable: "Secret", bearer: "Token", oauth: "Access token", model: "Key" };

const CLIENTS = [
  { value: "none", label: "It does not" },
  { value: "client_secret_basic", label: "By a secret in a header (client_secret_basic)" },
  { value: "client_secret_post", label: "By a secret in the body (client_secret_post)" },
];

function OAuthFields({ renewed, setRenewed, client, setClient }: { renewed: boolean; setRenewed: (value: boolean) => void; client: string; setClient: (value: string) => void }) {
  return (
    <>
      <Expiry />
      <Switch label="Renew it with a refresh token" checked={renewed} onChange={(event) => setRenewed(event.currentTarget.checked)} />
      {renewed && (
        <>
          <SecretInput name="refresh_token" label="Refresh token" />
          <TextInput type="url" name="token_endpoint" label="Token endpoint" placeholder="https://login.example.org/oauth/token" required />
          <TextInput name="client_id" label="Client ID" required />
          <Select label="How the client shows who it is" data={CLIENTS} value={client} onChange={(value) => setClient(value ?? "none")} allowDeselect={false} />
          {client !== "none" && <SecretInput name="client_secret" label="Client secret" />}
          <TextInput name="scope" label="Scope" />
          <TextInput name="resource" label="Resource" />
        </>
      )}
    </>
  );
}

function Expiry() {
  return <TextInput type="datetime-local" name="expires_at" label="It expires" description="Empty: nobody knows." />;
}

/** Another secret instead of the old one, which is shown nowhere. */
function ReplaceForm({ credential, done }: { credential: VaultCredential; done: () => void }) {
  const replace = useChange("vault", changes.replaceSecret);
  const { auth } = credential;
  const client = auth.type === "mcp_oauth" ? (auth.refresh?.token_endpoint_auth.type ?? "none") : "none";

  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const field = event.currentTarget;
    const saved = () => {
      field.reset();
      done();
    };
    replace.mutate({ of: credential, auth: replaced(auth, client, new FormData(field)) }, { onSuccess: saved });
  };

  return (
    <form onSubmit={submit} autoComplete="off">
      <Stack>
        <Text size="sm">Sessions that run use the new secret within 5 seconds. The old one is gone.</Text>
        <SecretInput name="secret" label={auth.type === "mcp_oauth" ? "New access token" : "New secret"} />
        {auth.type === "mcp_oauth" && <Expiry />}
        {auth.type === "mcp_oauth" && auth.refresh !== null && <SecretInput name="refresh_token" label="New refresh token" description="Empty: it stays as it is." required={false} />}
        {client !== "none" && <SecretInput name="client_secret" label="New client secret" description="Empty: it stays as it is." required={false} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={done}>
            Cancel
          </Button>
          <Button type="submit" loading={replace.isPending}>
            Replace it
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function replaced(auth: CredentialAuth, client: string, form: FormData): Record<string, unknown> {
  const { type } = auth;
  if (type === "environment_variable") return { type, secret_value: secret(form, "secret") };
  if (type === "static_bearer") return { type, token: secret(form, "secret") };
  const client_secret = some({ client_secret: secret(form, "client_secret") });
  const refresh = {
    ...some({ refresh_token: secret(form, "refresh_token") }),
    ...("client_secret" in client_secret ? { token_endpoint_auth: { type: client, ...client_secret } } : {}),
  };
  const access = { type, access_token: secret(form, "secret"), expires_at: moment(form, "expires_at") };
  return Object.keys(refresh).length === 0 ? access : { ...access, refresh };
}
