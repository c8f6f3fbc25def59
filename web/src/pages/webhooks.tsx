import { Badge, Button, Group, MultiSelect, Stack, Text, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";

import { changes, useChange, useSave, useWebhooks } from "../api/hooks";
import type { Webhook } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, FormTrouble, SureButton, ThingCard, Things } from "../parts/resource";
import { Secret } from "../parts/secret";
import { useTroubles } from "../parts/trouble";
import { ago, sentence } from "../parts/words";

const EVERYTHING = "*";

/** Those that are asked for most; any other type can be had by the API. */
const USUAL = [
  "session.created",
  "session.running",
  "session.idled",
  "session.requires_action",
  "session.budget_reached",
  "session.status_rescheduled",
  "session.status_terminated",
  "session.archived",
  "session.deleted",
  "agent.created",
  "agent.updated",
  "agent.archived",
  "vault.created",
  "vault.archived",
  "vault.deleted",
  "vault_credential.created",
  "vault_credential.archived",
  "vault_credential.deleted",
  "vault_credential.refresh_failed",
];

export function WebhooksPage() {
  const webhooks = useWebhooks();
  return (
    <Page title="Webhooks" actions={<FormButton label="New webhook" title="New webhook" form={(done) => <WebhookForm done={done} />} />}>
      <Text size="sm" c="dimmed" mb="sm">
        Servers of yours that are told what happens here, by signed requests.
      </Text>
      <Loaded query={webhooks}>
        {(found) => (
          <Things none="No webhooks yet.">
            {found.map((webhook) => (
              <ThingCard
                key={webhook.id}
                name={webhook.name || webhook.url}
                to={`/webhooks/${webhook.id}`}
                about={<WebhookFacts webhook={webhook} />}
                actions={<WebhookActions webhook={webhook} />}
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

export function WebhookFacts({ webhook }: { webhook: Webhook }) {
  const all = webhook.enabled_events.includes(EVERYTHING);
  return (
    <Stack gap={4}>
      <Group gap="xs">
        <Badge size="sm" variant="light" color={webhook.state === "enabled" ? "teal" : "red"}>
          {webhook.state}
        </Badge>
        <span style={{ overflowWrap: "anywhere" }}>{webhook.url}</span>
      </Group>
      <span>
        {all ? "all events" : webhook.enabled_events.join(", ")} · made {ago(webhook.created_at)}
      </span>
      {webhook.disabled_reason !== "" && <b>Disabled: {sentence(webhook.disabled_reason)}</b>}
      {webhook.state === "enabled" && webhook.failing_since !== null && <b>Its deliveries have failed since {ago(webhook.failing_since)}.</b>}
    </Stack>
  );
}

export function WebhookActions({ webhook }: { webhook: Webhook }) {
  const navigate = useNavigate();
  const change = useChange("webhooks", changes.changeWebhook);
  const remove = useChange("webhooks", changes.deleteWebhook, true); // itself it must not be asked for any more
  const other = webhook.state === "enabled" ? "disabled" : "enabled";
  return (
    <>
      <Button variant="default" size="xs" loading={change.isPending} onClick={() => change.mutate({ id: webhook.id, state: other })}>
        {other === "enabled" ? "Enable" : "Disable"}
      </Button>
      <FormButton variant="default" label="Edit" title="Edit the webhook" form={(done) => <WebhookForm of={webhook} done={done} />} />
      <FormButton variant="default" label="New secret" title="Another signing secret" form={() => <Rotation webhook={webhook} />} />
      <SureButton
        label="Delete"
        title="Delete this webhook?"
        says="It is told nothing more, and what was to be sent to it is removed. This cannot be undone."
        yes="Delete the webhook"
        busy={remove.isPending}
        act={() => remove.mutate(webhook.id, { onSuccess: () => navigate("/webhooks") })}
      />
    </>
  );
}

function Rotation({ webhook }: { webhook: Webhook }) {
  const rotate = useChange("webhooks", changes.rotateWebhook);
  if (rotate.data?.signing_secret !== undefined) return <Secret secret={rotate.data.signing_secret} />;
  return (
    <Stack>
      <Text size="sm">For a day, requests are signed with the new secret and with the old one. Give the new one to the receiver within that time.</Text>
      <Button loading={rotate.isPending} onClick={() => rotate.mutate(webhook.id)} data-autofocus>
        Make another secret
      </Button>
    </Stack>
  );
}

/** A new webhook, or another address, name and events for one; its secret stays. */
function WebhookForm({ of, done }: { of?: Webhook; done: () => void }) {
  const create = useSave("webhooks", changes.createWebhook);
  const change = useSave("webhooks", changes.changeWebhook);
  const [url, setUrl] = useState(of?.url ?? "");
  const [name, setName] = useState(of?.name ?? "");
  const chosen = of?.enabled_events.filter((type) => type !== EVERYTHING) ?? [];
  const [events, setEvents] = useState<string[]>(chosen);
  const { form, troubles } = useTroubles(create.error ?? change.error, { paths: { url: "url", name: "name", enabled_events: "events" } });
  if (create.data?.signing_secret !== undefined) return <Secret secret={create.data.signing_secret} />;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const given = { url, name, enabled_events: events.length === 0 ? [EVERYTHING] : events };
    if (of === undefined) create.mutate(given);
    else change.mutate({ ...given, id: of.id }, { onSuccess: done });
  };
  return (
    <form onSubmit={submit} ref={form}>
      <Stack>
        <TextInput label="Address" placeholder="https://example.com/hook" value={url} onChange={(event) => setUrl(event.currentTarget.value)} error={troubles.url} required data-autofocus />
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} error={troubles.name} />
        <MultiSelect
          label="Events"
          description="None chosen: all of them."
          data={[...new Set([...USUAL, ...chosen])]}
          value={events}
          onChange={setEvents}
          error={troubles.events}
          searchable
          clearable
        />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={create.isPending || change.isPending}>
          {of === undefined ? "Create" : "Save"}
        </Button>
      </Stack>
    </form>
  );
}
