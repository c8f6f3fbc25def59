import { Alert, Anchor, Button, Checkbox, Group, Radio, Select, Stack, Switch, TagsInput, Text, TextInput } from "@mantine/core";
import { CircleAlert, CircleCheck, CircleHelp, KeyRound } from "lucide-react";
import { useState, type FormEvent } from "react";
import { Link, useParams } from "react-router";

import { changes, useChange, useCredentials, useSave, useVault } from "../api/hooks";
import { isGone } from "../api/http";
import type { CredentialAuth, CredentialValidation, Vault, VaultCredential } from "../api/types";
import { metadataOf, notesOf, NotesInput, patchOf, unclear } from "../parts/notes";
import { Loaded, Page } from "../parts/page";
import { FormButton, FormTrouble, SureButton, ThingCard, Things } from "../parts/resource";
import { useTroubles, type Troubles } from "../parts/trouble";
import { verdictOf } from "../parts/validation";
import { isForModel, VaultFacts } from "../parts/vault-facts";
import { ago } from "../parts/words";
import { NotFoundPage } from "./not-found";
import { EditVault } from "./vaults";

export function VaultPage() {
  const { id = "" } = useParams();
  const vault = useVault(id);
  if (isGone(vault.error)) return <NotFoundPage />;
  return <Loaded query={vault}>{(found) => <VaultView vault={found} />}</Loaded>;
}

function VaultView({ vault }: { vault: Vault }) {
  const credentials = useCredentials(vault.id);
  const used = credentials.data?.filter(({ archived_at }) => archived_at === null) ?? [];
  const model = isForModel(vault);
  const keyless = model && credentials.data !== undefined && !used.some(({ auth }) => isModelKey(auth));
  const label = model ? "Add the key" : "New credential";
  const add = (keyless || !model) && <FormButton label={label} title={label} form={(done) => <CredentialForm vault={vault} forModel={model} done={done} />} />;
  return (
    <Page
      title={vault.display_name}
      actions={
        vault.archived_at === null && (
          <>
            <EditVault vault={vault} />
            {add}
          </>
        )
      }
    >
      <Stack>
        <Text size="sm" c="dimmed">
          <VaultFacts vault={vault} /> · <Anchor component={Link} to="/vaults" inherit underline="always">all vaults</Anchor>
        </Text>
        {vault.archived_at !== null && <Alert color="gray" title="This vault is archived">Its secrets are gone, and new sessions cannot have it.</Alert>}
        {vault.archived_at === null && keyless && (
          <Alert color="yellow" title="It has no key yet" icon={<KeyRound size={18} aria-hidden />}>
            Until it has one, sessions with this vault cannot ask their model.
          </Alert>
        )}
        <Loaded query={credentials}>
          {(found) => (
            <Things none={model ? "No credentials yet." : "No credentials yet. A credential is a token for an MCP server, or a variable for programs in the sandbox."}>
              {found.map((credential) => (
                <CredentialCard key={credential.id} credential={credential} />
              ))}
            </Things>
          )}
        </Loaded>
      </Stack>
    </Page>
  );
}

const isModelKey = (auth: CredentialAuth) => auth.type === "static_bearer" && auth.mcp_server_url === "";

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
  const { auth, display_name, metadata, created_at, updated_at } = credential;
  const facts = [
    kindOf(auth),
    ...(display_name === null ? [] : [`for ${purposeOf(auth)}`]),
    ...(auth.type === "environment_variable" ? [reachOf(auth)] : []),
    ...(auth.type === "mcp_oauth" ? [renewalOf(auth)] : []),
    ...notesOf(metadata),
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

function CredentialCard({ credential }: { credential: VaultCredential }) {
  const validate = useChange("vaults", changes.validateCredential);
  const { auth, archived_at, display_name } = credential;
  // Of a credential that was changed since, it says nothing.
  const fresh = validate.data !== undefined && Date.parse(validate.data.validated_at) >= Date.parse(credential.updated_at);
  return (
    <ThingCard
      name={display_name ?? purposeOf(auth)}
      archived={archived_at !== null}
      about={
        <>
          <About credential={credential} />
          {fresh && <Verdict found={validate.data} />}
        </>
      }
      actions={
        <>
          {auth.type === "mcp_oauth" && archived_at === null && (
            <Button variant="default" size="xs" loading={validate.isPending} onClick={() => validate.mutate(credential)}>
              Validate
            </Button>
          )}
          <Actions credential={credential} />
        </>
      }
    />
  );
}

const ICONS = { teal: CircleCheck, red: CircleAlert, yellow: CircleHelp };

/** Whether a token works, as its server said just now. */
function Verdict({ found }: { found: CredentialValidation }) {
  const { colour, title, says } = verdictOf(found);
  const Icon = ICONS[colour];
  return (
    <Alert color={colour} variant="light" p="xs" mt="xs" title={title} icon={<Icon size={16} aria-hidden />}>
      <span style={{ overflowWrap: "anywhere" }}>{says}</span>
    </Alert>
  );
}

function Actions({ credential }: { credential: VaultCredential }) {
  const archive = useChange("vaults", changes.archiveCredential);
  const remove = useChange("vaults", changes.deleteCredential);
  const name = credential.display_name ?? purposeOf(credential.auth);
  return (
    <>
      {credential.archived_at === null && (
        <>
          <FormButton variant="default" label="Edit" title={`Edit ${name}`} form={(done) => <EditForm credential={credential} done={done} />} />
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
function SecretInput({ name, label, description, error, required = true }: { name: string; label: string; description?: string; error?: string; required?: boolean }) {
  return <TextInput type="password" name={name} label={label} description={description} error={error} required={required} autoComplete="off" spellCheck={false} />;
}

/** What was typed into a field, and whether there was anything. */
const typed = (form: FormData, name: string) => String(form.get(name) ?? "").trim();
const secret = (form: FormData, name: string) => String(form.get(name) ?? ""); // as it is: it may begin with a space
const some = (fields: Record<string, string>) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== ""));
const moment = (form: FormData, name: string) => (typed(form, name) === "" ? null : new Date(typed(form, name)).toISOString());

/** Which field of these forms the server means. */
const PATHS = {
  display_name: "name",
  metadata: "notes",
  "auth.secret_name": "variable",
  "auth.mcp_server_url": "server",
  "auth.secret_value": "secret",
  "auth.token": "secret",
  "auth.access_token": "secret",
  "auth.networking": "hosts",
  "auth.injection_location": "parts",
  "auth.expires_at": "expires_at",
  "auth.refresh.refresh_token": "refresh_token",
  "auth.refresh.token_endpoint": "token_endpoint",
  "auth.refresh.client_id": "client_id",
  "auth.refresh.token_endpoint_auth": "client_secret",
  "auth.refresh.scope": "scope",
  "auth.refresh.resource": "resource",
};

type Kind = "variable" | "bearer" | "oauth" | "model";
const KINDS: Record<Kind, { label: string; description: string; secret: string; same: string }> = {
  model: { label: "The key for the model", description: "Sessions with this vault ask their model with it.", secret: "Key", same: "secret" },
  variable: { label: "A variable", description: "Programs in the sandbox find a placeholder in it, which becomes the secret in their requests.", secret: "Secret", same: "variable" },
  bearer: { label: "A token for an MCP server", description: "Put on the requests of agents that use this server.", secret: "Token", same: "server" },
  oauth: { label: "An OAuth token for an MCP server", description: "It can be renewed by itself, with a refresh token.", secret: "Access token", same: "server" },
};

/** `forModel`: what is wanted is the key of a vault for a model. */
function CredentialForm({ vault, forModel, done }: { vault: Vault; forModel: boolean; done: () => void }) {
  const create = useSave("vaults", changes.createCredential);
  const [kind, setKind] = useState<Kind>(forModel ? "model" : "variable");
  const reach = useReach();
  const [renewed, setRenewed] = useState(false);
  const [client, setClient] = useState("none");
  const [notes, setNotes] = useState<string[]>([]);
  const { form, troubles } = useTroubles(create.error, { same: KINDS[kind].same, paths: PATHS });

  const authOf = (given: FormData): Record<string, unknown> => {
    const mcp_server_url = typed(given, "server");
    if (kind === "variable") return { type: "environment_variable", secret_name: typed(given, "variable"), secret_value: secret(given, "secret"), ...reach.request };
    if (kind === "model") return { type: "static_bearer", token: secret(given, "secret") };
    if (kind === "bearer") return { type: "static_bearer", mcp_server_url, token: secret(given, "secret") };
    const refresh = {
      refresh_token: secret(given, "refresh_token"),
      token_endpoint: typed(given, "token_endpoint"),
      client_id: typed(given, "client_id"),
      token_endpoint_auth: { type: client, ...some({ client_secret: secret(given, "client_secret") }) },
      ...some({ scope: typed(given, "scope"), resource: typed(given, "resource") }),
    };
    return { type: "mcp_oauth", mcp_server_url, access_token: secret(given, "secret"), expires_at: moment(given, "expires_at"), ...(renewed ? { refresh } : {}) };
  };

  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    if ((kind === "variable" && !reach.check()) || unclear(notes) !== undefined) return;
    const field = event.currentTarget;
    const given = new FormData(field);
    const saved = () => {
      field.reset(); // no secret outlives its being saved
      done();
    };
    create.mutate({ vault: vault.id, auth: authOf(given), ...some({ display_name: typed(given, "name") }), metadata: metadataOf(notes) }, { onSuccess: saved });
  };

  return (
    <form ref={form} onSubmit={submit} autoComplete="off">
      <Stack>
        {!forModel && (
          <Radio.Group label="What it is" value={kind} onChange={(value) => setKind(value as Kind)}>
            <Stack gap="xs" mt={4}>
              {(["variable", "bearer", "oauth"] as const).map((one) => (
                <Radio key={one} value={one} label={KINDS[one].label} description={KINDS[one].description} />
              ))}
            </Stack>
          </Radio.Group>
        )}
        {(kind === "bearer" || kind === "oauth") && <TextInput type="url" name="server" label="Address of the MCP server" placeholder="https://mcp.example.org/mcp" error={troubles.server} required />}
        {kind === "variable" && <TextInput name="variable" label="Variable" placeholder="GITHUB_TOKEN" pattern="[A-Za-z_][A-Za-z0-9_]*" title="Letters, digits and _" error={troubles.variable} required />}
        <SecretInput key={kind} name="secret" label={KINDS[kind].secret} description="It cannot be looked at afterwards, only replaced." error={troubles.secret} />
        {kind === "variable" && <ReachFields reach={reach} troubles={troubles} />}
        {kind === "oauth" && <OAuthFields renewed={renewed} setRenewed={setRenewed} client={client} setClient={setClient} troubles={troubles} />}
        <NameInput error={troubles.name} />
        <NotesInput of="vault" notes={notes} setNotes={setNotes} error={troubles.notes} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={create.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

function NameInput({ value, error }: { value?: string; error?: string }) {
  return <TextInput name="name" label="Name" description="What to call it here. Empty: by what it is for." maxLength={255} defaultValue={value} error={error} />;
}

/** Where a variable's secret may go, and where in a request it is put. */
function useReach(auth?: CredentialAuth & { type: "environment_variable" }) {
  const [type, setType] = useState<string>(auth?.networking.type ?? "limited");
  const [hosts, setHosts] = useState(auth?.networking.allowed_hosts ?? []);
  const places = (["header", "body"] as const).filter((part) => (auth ? auth.injection_location[part] : part === "header"));
  const [parts, setParts] = useState<string[]>(places);
  // Said when somebody saves, and until they save again: what moves under a finger is missed.
  const [homeless, setHomeless] = useState(false);
  const check = () => {
    setHomeless(type === "limited" && hosts.length === 0);
    return parts.length > 0 && (type !== "limited" || hosts.length > 0);
  };
  const request = {
    networking: type === "limited" ? { type, allowed_hosts: hosts } : { type },
    injection_location: { header: parts.includes("header"), body: parts.includes("body") },
  };
  return { type, setType, hosts, setHosts, parts, setParts, homeless, check, request };
}

function ReachFields({ reach, troubles }: { reach: ReturnType<typeof useReach>; troubles: Troubles }) {
  const { type, setType, hosts, setHosts, parts, setParts, homeless } = reach;
  return (
    <>
      <Radio.Group label="Where it may be sent" value={type} onChange={setType}>
        <Stack gap="xs" mt={4}>
          <Radio value="limited" label="Only to the hosts below" />
          <Radio value="unrestricted" label="To every host that the session reaches" description="The proxy then opens the encryption of all of them." />
        </Stack>
      </Radio.Group>
      {type === "limited" && <TagsInput label="Hosts" placeholder="api.example.org, *.example.org" value={hosts} onChange={setHosts} error={homeless ? "Name at least one host." : troubles.hosts} />}
      <Checkbox.Group label="Where in a request" value={parts} onChange={setParts} error={parts.length === 0 ? "Choose at least one." : troubles.parts}>
        <Stack gap="xs" mt={4}>
          <Checkbox value="header" label="In headers" />
          <Checkbox value="body" label="In bodies" description="An agent can then post the secret as content to such a host, and read it there." />
        </Stack>
      </Checkbox.Group>
    </>
  );
}

const CLIENTS = [
  { value: "none", label: "It does not" },
  { value: "client_secret_basic", label: "By a secret in a header (client_secret_basic)" },
  { value: "client_secret_post", label: "By a secret in the body (client_secret_post)" },
];

function OAuthFields({ renewed, setRenewed, client, setClient, troubles }: { renewed: boolean; setRenewed: (value: boolean) => void; client: string; setClient: (value: string) => void; troubles: Troubles }) {
  return (
    <>
      <Expiry error={troubles.expires_at} />
      <Switch label="Renew it with a refresh token" checked={renewed} onChange={(event) => setRenewed(event.currentTarget.checked)} />
      {renewed && (
        <>
          <SecretInput name="refresh_token" label="Refresh token" error={troubles.refresh_token} />
          <TextInput type="url" name="token_endpoint" label="Token endpoint" placeholder="https://login.example.org/oauth/token" error={troubles.token_endpoint} required />
          <TextInput name="client_id" label="Client ID" error={troubles.client_id} required />
          <Select label="How the client shows who it is" data={CLIENTS} value={client} onChange={(value) => setClient(value ?? "none")} allowDeselect={false} />
          {client !== "none" && <SecretInput name="client_secret" label="Client secret" error={troubles.client_secret} />}
          <TextInput name="scope" label="Scope" error={troubles.scope} />
          <TextInput name="resource" label="Resource" error={troubles.resource} />
        </>
      )}
    </>
  );
}

function Expiry({ error }: { error?: string }) {
  return <TextInput type="datetime-local" name="expires_at" label="It expires" description="Empty: nobody knows." error={error} />;
}

/** What is no secret of a credential. What it is for stays: a secret does not move to another server or variable. */
function EditForm({ credential, done }: { credential: VaultCredential; done: () => void }) {
  const update = useSave("vaults", changes.updateCredential);
  const { auth, metadata } = credential;
  const reach = useReach(auth.type === "environment_variable" ? auth : undefined);
  const [notes, setNotes] = useState(notesOf(metadata));
  const { form, troubles } = useTroubles(update.error, { paths: PATHS });

  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    if ((auth.type === "environment_variable" && !reach.check()) || unclear(notes) !== undefined) return;
    const given = new FormData(event.currentTarget);
    const named = { display_name: typed(given, "name") || null, metadata: patchOf(metadata, metadataOf(notes)) };
    update.mutate({ of: credential, ...named, ...edited(auth, reach.request, typed(given, "scope")) }, { onSuccess: done });
  };

  return (
    <form ref={form} onSubmit={submit} autoComplete="off">
      <Stack>
        {!isModelKey(auth) && <TextInput label={auth.type === "environment_variable" ? "Variable" : "Address of the MCP server"} description="It cannot be changed: archive the credential, and make another one." value={purposeOf(auth)} readOnly />}
        {auth.type === "environment_variable" && <ReachFields reach={reach} troubles={troubles} />}
        {auth.type === "mcp_oauth" && auth.refresh !== null && <TextInput name="scope" label="Scope" description="What is asked for when the token is renewed." defaultValue={auth.refresh.scope ?? ""} error={troubles.scope} />}
        <NameInput value={credential.display_name ?? ""} error={troubles.name} />
        <NotesInput of="vault" notes={notes} setNotes={setNotes} error={troubles.notes} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={update.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

/** What of a credential's own changes, besides its name; none of it if there is nothing to change. */
function edited(auth: CredentialAuth, reach: Record<string, unknown>, scope: string): { auth?: Record<string, unknown> } {
  if (auth.type === "environment_variable") return { auth: { type: auth.type, ...reach } };
  if (auth.type === "mcp_oauth" && auth.refresh !== null) return { auth: { type: auth.type, refresh: { scope } } };
  return {};
}

/** Another secret instead of the old one, which is shown nowhere. */
function ReplaceForm({ credential, done }: { credential: VaultCredential; done: () => void }) {
  const replace = useSave("vaults", changes.updateCredential);
  const { auth } = credential;
  const refresh = auth.type === "mcp_oauth" ? auth.refresh : null;
  const client = refresh?.token_endpoint_auth.type ?? "none";
  const [empty, setEmpty] = useState(false);
  const { form, troubles } = useTroubles(replace.error, { paths: PATHS });

  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const field = event.currentTarget;
    const given = new FormData(field);
    const nothing = ["secret", "refresh_token", "client_secret"].every((name) => secret(given, name) === "");
    setEmpty(nothing);
    if (nothing) return;
    const saved = () => {
      field.reset();
      done();
    };
    replace.mutate({ of: credential, auth: replaced(auth, client, given) }, { onSuccess: saved });
  };

  const stays = refresh === null ? undefined : "Empty: it stays as it is.";
  return (
    <form ref={form} onSubmit={submit} autoComplete="off">
      <Stack>
        <Text size="sm">Sessions that run use the new secret within 5 seconds. The old one is gone.</Text>
        <SecretInput name="secret" label={auth.type === "mcp_oauth" ? "New access token" : "New secret"} description={stays} error={empty ? "Give at least one of them." : troubles.secret} required={refresh === null} />
        {auth.type === "mcp_oauth" && <Expiry error={troubles.expires_at} />}
        {refresh !== null && <SecretInput name="refresh_token" label="New refresh token" description={stays} error={troubles.refresh_token} required={false} />}
        {client !== "none" && <SecretInput name="client_secret" label="New client secret" description={stays} error={troubles.client_secret} required={false} />}
        <FormTrouble>{troubles.form}</FormTrouble>
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

function replaced(auth: CredentialAuth, client: string, given: FormData): Record<string, unknown> {
  const { type } = auth;
  if (type === "environment_variable") return { type, secret_value: secret(given, "secret") };
  if (type === "static_bearer") return { type, token: secret(given, "secret") };
  const access_token = secret(given, "secret");
  const client_secret = some({ client_secret: secret(given, "client_secret") });
  const refresh = {
    ...some({ refresh_token: secret(given, "refresh_token") }),
    ...("client_secret" in client_secret ? { token_endpoint_auth: { type: client, ...client_secret } } : {}),
  };
  const access = access_token === "" ? {} : { access_token, expires_at: moment(given, "expires_at") };
  return { type, ...access, ...(Object.keys(refresh).length === 0 ? {} : { refresh }) };
}
