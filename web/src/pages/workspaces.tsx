import { ActionIcon, Button, Checkbox, Group, NumberInput, Radio, Select, SimpleGrid, Stack, Switch, Text, Textarea, TextInput } from "@mantine/core";
import { X } from "lucide-react";
import { useState, type FormEvent } from "react";

import { changes, useChange, useKeys, useMe, useWorkspaces } from "../api/hooks";
import type { Access, Trust, Workspace } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";
import { TRUST, TrustBadge } from "../parts/trust";
import { bytes } from "../parts/words";

const LEVELS: Trust[] = ["sandboxed", "vault", "full"];
const ACCESS: { value: Access; label: string }[] = [
  { value: "read", label: "may look" },
  { value: "write", label: "may work in it" },
  { value: "admin", label: "may change and share it" },
];

export function WorkspacesPage() {
  const workspaces = useWorkspaces();
  return (
    <Page title="Workspaces" actions={<FormButton label="New workspace" title="New workspace" form={(done) => <WorkspaceForm done={done} />} />}>
      <Loaded query={workspaces}>
        {(found) => (
          <Things none="No workspaces yet. A workspace is a directory with a name, which sessions share and which outlives them.">
            {found.map((workspace) => (
              <ThingCard key={workspace.id} name={workspace.name} about={<About workspace={workspace} />} actions={<Actions workspace={workspace} />} />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

function About({ workspace }: { workspace: Workspace }) {
  const { settings, permissions, description } = workspace;
  const shared = permissions.find((one) => one.type === "everyone");
  return (
    <Stack gap={4}>
      {description !== "" && <Text size="sm">{description}</Text>}
      <Group gap="xs">
        {settings.trust_levels.map((trust) => (
          <TrustBadge key={trust} trust={trust} />
        ))}
        <Text size="xs">
          {settings.writers === "serialised" ? "one turn at a time" : "turns may overlap"} · {settings.quota_bytes === null ? "no limit of size" : `at most ${bytes(settings.quota_bytes)}`} ·{" "}
          {shared ? `every key ${labelOf(shared.access)}` : `${permissions.length} ${permissions.length === 1 ? "key" : "keys"}`}
        </Text>
      </Group>
    </Stack>
  );
}

function Actions({ workspace }: { workspace: Workspace }) {
  return (
    <>
      <FormButton variant="default" label="Edit" title={`Edit ${workspace.name}`} form={(done) => <WorkspaceForm workspace={workspace} done={done} />} />
      <FormButton variant="default" label="Share" title={`Who may use ${workspace.name}`} form={() => <Sharing id={workspace.id} />} />
      <DeleteButton workspace={workspace} />
    </>
  );
}

function DeleteButton({ workspace }: { workspace: Workspace }) {
  const remove = useChange("workspaces", changes.deleteWorkspace);
  const [force, setForce] = useState(false);
  return (
    <SureButton
      label="Delete"
      title={`Delete ${workspace.name}?`}
      says={
        <Stack gap="sm">
          Its files and their snapshots are removed for good.
          <Checkbox label="Also if sessions still use it. Each of them is told." checked={force} onChange={(event) => setForce(event.currentTarget.checked)} />
        </Stack>
      }
      yes="Delete the workspace"
      busy={remove.isPending}
      act={(done) => remove.mutate({ id: workspace.id, force }, { onSuccess: done })}
    />
  );
}

const GIGA = 1_000_000_000;

function WorkspaceForm({ workspace, done }: { workspace?: Workspace; done: () => void }) {
  const create = useChange("workspaces", changes.createWorkspace);
  const update = useChange("workspaces", changes.updateWorkspace);
  const reach = LEVELS.indexOf(useMe().data?.trust_ceiling ?? "sandboxed");
  const before = workspace?.settings;
  const [name, setName] = useState(workspace?.name ?? "");
  const [description, setDescription] = useState(workspace?.description ?? "");
  const [levels, setLevels] = useState<string[]>(before?.trust_levels ?? ["sandboxed"]);
  const [serialised, setSerialised] = useState(before?.writers === "serialised");
  const [scope, setScope] = useState(before?.mount_scope ?? "unset");
  const [quota, setQuota] = useState<string | number>(before?.quota_bytes ? before.quota_bytes / GIGA : "");
  const [kept, setKept] = useState<string | number>(before?.keep_snapshots ?? 100);
  const [days, setDays] = useState<string | number>(before?.keep_days ?? "");

  const submit = (event: FormEvent) => {
    event.preventDefault();
    const settings = {
      trust_levels: LEVELS.filter((level) => levels.includes(level)),
      writers: serialised ? "serialised" : "allowed",
      mount_scope: scope === "unset" ? null : scope,
      quota_bytes: quota === "" ? null : Math.round(Number(quota) * GIGA),
      keep_snapshots: kept === "" ? null : Number(kept),
      keep_days: days === "" ? null : Number(days),
    };
    const body = { name, description, settings };
    if (workspace) update.mutate({ id: workspace.id, ...body }, { onSuccess: done });
    else create.mutate(body, { onSuccess: done });
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} maxLength={128} required data-autofocus />
        <Textarea label="Description" autosize minRows={1} maxRows={6} value={description} onChange={(event) => setDescription(event.currentTarget.value)} />
        <Checkbox.Group label="Sessions of these trust levels may work in it" value={levels} onChange={setLevels} error={levels.length === 0 ? "Choose at least one." : undefined}>
          <Group mt={4}>
            {LEVELS.map((level, rank) => (
              <Checkbox key={level} value={level} label={TRUST[level].word} disabled={rank > reach && !levels.includes(level)} />
            ))}
          </Group>
        </Checkbox.Group>
        <Switch label="One turn at a time" description="Where several sessions work in it, each waits for the other's turn to end." checked={serialised} onChange={(event) => setSerialised(event.currentTarget.checked)} />
        <Radio.Group label="What a sandbox sees, unless its session says otherwise" value={scope} onChange={setScope}>
          <Group mt={4}>
            <Radio value="unset" label="What the environment says" />
            <Radio value="workspace" label="The workspace" />
            <Radio value="workspace+vault" label="The workspace, and the vault directory to read" />
          </Group>
        </Radio.Group>
        <SimpleGrid cols={{ base: 1, xs: 3 }}>
          <NumberInput label="Most gigabytes" placeholder="no limit" min={0.001} value={quota} onChange={setQuota} />
          <NumberInput label="Snapshots kept" min={1} max={10_000} allowDecimal={false} value={kept} onChange={setKept} />
          <NumberInput label="Days kept" placeholder="no limit" min={1} max={36_500} allowDecimal={false} value={days} onChange={setDays} />
        </SimpleGrid>
        <Button type="submit" loading={create.isPending || update.isPending} disabled={levels.length === 0}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

const EVERYONE = "everyone";

/** Who may do what, changed one by one. The list is read from what is known, so it shows each change. */
function Sharing({ id }: { id: string }) {
  const workspace = useWorkspaces().data?.find((one) => one.id === id);
  const share = useChange("workspaces", changes.shareWorkspace);
  const isAdmin = useMe().data?.role === "admin";
  const keys = useKeys(isAdmin).data ?? [];
  const [whom, setWhom] = useState<string | null>(EVERYONE);
  const [access, setAccess] = useState<string>("write");
  const nameOf = (key: string) => keys.find((one) => one.id === key)?.name ?? key;
  const give = (to: string, what: string) => share.mutate({ id, access: what, ...(to === EVERYONE ? { everyone: true } : { key_id: to }) });
  const people = [{ value: EVERYONE, label: "Every key of this tenant" }, ...keys.filter((key) => key.revoked_at === null).map(({ id: value, name }) => ({ value, label: name }))];
  return (
    <Stack>
      <Stack gap={6} component="ul" p={0} m={0} style={{ listStyle: "none" }}>
        {(workspace?.permissions ?? []).map((one) => {
          const to = one.type === "everyone" ? EVERYONE : one.key_id;
          const name = one.type === "everyone" ? "Every key of this tenant" : nameOf(one.key_id);
          return (
            <Group key={to} component="li" justify="space-between" wrap="nowrap">
              <Text size="sm" miw={0} style={{ overflowWrap: "anywhere" }}>
                <b>{name}</b> {labelOf(one.access)}
              </Text>
              <ActionIcon variant="default" aria-label={`Take it away from ${name}`} onClick={() => give(to, "none")} loading={share.isPending}>
                <X size={14} aria-hidden />
              </ActionIcon>
            </Group>
          );
        })}
      </Stack>
      <Group align="flex-end">
        {isAdmin ? (
          <Select label="Who" data={people} value={whom} onChange={setWhom} allowDeselect={false} searchable flex="1 1 200px" />
        ) : (
          <TextInput label="Who (a key's id, or “everyone”)" value={whom ?? ""} onChange={(event) => setWhom(event.currentTarget.value)} flex="1 1 200px" />
        )}
        <Select label="May" data={ACCESS} value={access} onChange={(value) => setAccess(value ?? "write")} allowDeselect={false} />
        <Button onClick={() => whom !== null && give(whom, access)} loading={share.isPending}>
          Share
        </Button>
      </Group>
    </Stack>
  );
}

function labelOf(access: Access): string {
  return ACCESS.find(({ value }) => value === access)?.label ?? access;
}
