import { Button, Group, Select, Stack, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";

import { changes, useChange, useKeys, useMe } from "../api/hooks";
import type { Key, Trust } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";
import { Secret } from "../parts/secret";
import { TRUST, TrustBadge } from "../parts/trust";
import { ago } from "../parts/words";

const SEES = [
  { value: "own", label: "Its own sessions, and shared ones" },
  { value: "tenant", label: "All sessions of its tenant" },
];

export function KeysPage() {
  const keys = useKeys();
  const me = useMe().data;
  const revoke = useChange("keys", changes.revokeKey);
  return (
    <Page title="API keys" actions={<FormButton label="New key" title="New API key" form={(done) => <KeyForm done={done} />} />}>
      <Loaded query={keys}>
        {(found) => (
          <Things none="No keys.">
            {found.filter((key) => key.revoked_at === null).map((key) => (
              <ThingCard
                key={key.id}
                name={key.name}
                archived={false}
                about={
                  <Group gap="xs">
                    {key.id === me?.key_id && <b>the key you are using</b>}
                    {key.hint} · {key.role} · tenant {key.tenant} · {key.role === "user" && key.sees === "own" ? "sees its own" : "sees all"} · made {ago(key.created_at)}
                    <Group gap="xs" component="span" wrap="nowrap">
                      trusted up to <TrustBadge trust={key.trust_ceiling} />
                    </Group>
                  </Group>
                }
                actions={
                  <>
                    <FormButton variant="default" label="Edit" title={`Edit ${key.name}`} form={(done) => <KeyForm of={key} done={done} />} />
                    {key.id !== me?.key_id && (
                      <SureButton
                        label="Revoke"
                        title={`Revoke ${key.name}?`}
                        says="Whoever uses this key is logged out at once and cannot come back with it. This cannot be undone; another key can be made."
                        yes="Revoke the key"
                        act={(done) => revoke.mutate(key.id, { onSuccess: done })}
                        busy={revoke.isPending}
                      />
                    )}
                  </>
                }
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

/** A new key, or another name and ceiling for one; its role and its secret stay. */
function KeyForm({ of, done }: { of?: Key; done: () => void }) {
  const me = useMe().data;
  const create = useChange("keys", changes.createKey);
  const change = useChange("keys", changes.changeKey);
  const [name, setName] = useState(of?.name ?? "");
  const [role, setRole] = useState("user");
  const [tenant, setTenant] = useState(me?.tenant ?? "default");
  const [sees, setSees] = useState<string>(of?.sees ?? "own");
  const [ceiling, setCeiling] = useState<string>(of?.trust_ceiling ?? "sandboxed");
  const user = (of?.role ?? role) === "user"; // an administrator sees everything
  if (create.data?.secret !== undefined) return <Secret secret={create.data.secret} />;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const given = { name, trust_ceiling: ceiling, ...(user ? { sees } : {}) };
    if (of === undefined) create.mutate({ ...given, role, tenant });
    else change.mutate({ ...given, id: of.id }, { onSuccess: done });
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} required data-autofocus />
        {of === undefined && <Select label="Role" data={["user", "admin"]} value={role} onChange={(value) => setRole(value ?? "user")} allowDeselect={false} />}
        {of === undefined && (
          <TextInput
            label="Tenant"
            description="Keys of one tenant share agents and environments. Another name is a space of its own."
            value={tenant}
            onChange={(event) => setTenant(event.currentTarget.value)}
            pattern="[A-Za-z0-9_\-]{1,64}"
            title="Letters, digits, - and _, at most 64"
            required
          />
        )}
        {user && <Select label="It sees" data={SEES} value={sees} onChange={(value) => setSees(value ?? "own")} allowDeselect={false} />}
        <Select
          label="Most trust it may ask for"
          data={(Object.keys(TRUST) as Trust[]).map((value) => ({ value, label: TRUST[value].word }))}
          value={ceiling}
          onChange={(value) => setCeiling(value ?? "sandboxed")}
          allowDeselect={false}
        />
        <Button type="submit" loading={create.isPending || change.isPending}>
          {of === undefined ? "Create" : "Save"}
        </Button>
      </Stack>
    </form>
  );
}
