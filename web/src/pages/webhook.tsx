import { Badge, Button, Card, Group, Select, Stack, Text } from "@mantine/core";
import { useState } from "react";
import { useParams } from "react-router";

import { changes, useChange, useDeliveries, useWebhook } from "../api/hooks";
import type { Delivery, DeliveryState, Webhook } from "../api/types";
import { Loaded, Section } from "../parts/page";
import { Things } from "../parts/resource";
import { ThingPage } from "../parts/thing-page";
import { ago, sentence } from "../parts/words";
import { NotFoundPage } from "./not-found";
import { WebhookActions, WebhookFacts } from "./webhooks";

const COLORS: Record<DeliveryState, string> = { pending: "blue", delivered: "teal", failed: "red", held: "gray" };

export function WebhookPage() {
  const { id = "" } = useParams();
  return (
    <ThingPage
      query={useWebhook(id)}
      all={{ to: "/webhooks", label: "all webhooks" }}
      gone={<NotFoundPage />}
      show={(found) => ({
        title: found.name || found.url,
        about: <WebhookFacts webhook={found} />,
        actions: <WebhookActions webhook={found} />,
        children: <Deliveries webhook={found} />,
      })}
    />
  );
}

function Deliveries({ webhook }: { webhook: Webhook }) {
  const [state, setState] = useState<string | null>(null);
  const deliveries = useDeliveries(webhook.id, state);
  const replay = useChange("webhooks", changes.replayWebhook);
  const controls = (
    <>
      <Select aria-label="Which ones" placeholder="all" data={Object.keys(COLORS)} value={state} onChange={setState} size="xs" w={130} clearable />
      {webhook.state === "enabled" && (
        <Button variant="default" size="xs" loading={replay.isPending} onClick={() => replay.mutate(webhook.id)}>
          Send again what failed
        </Button>
      )}
    </>
  );
  return (
    <Section title="Deliveries" controls={controls}>
      <Loaded query={deliveries}>
        {(found) => (
          <Things none="Nothing was sent yet.">
            {found.map((delivery) => (
              <DeliveryCard key={delivery.id} delivery={delivery} enabled={webhook.state === "enabled"} />
            ))}
          </Things>
        )}
      </Loaded>
    </Section>
  );
}

function DeliveryCard({ delivery, enabled }: { delivery: Delivery; enabled: boolean }) {
  const replay = useChange("webhooks", changes.replayDelivery);
  const tries = delivery.attempts === 1 ? "1 attempt" : `${delivery.attempts} attempts`;
  const next = delivery.next_attempt_at === null ? "" : ` · next ${ago(delivery.next_attempt_at)}`;
  return (
    <Card withBorder padding="sm" component="li">
      <Group justify="space-between" align="flex-start">
        <Stack gap={2} miw={0} flex="1 1 240px">
          <Group gap="xs">
            <Text fw={600}>{delivery.event_type}</Text>
            <Badge size="sm" variant="light" color={COLORS[delivery.state]}>
              {delivery.state}
            </Badge>
          </Group>
          <Text size="sm" c="dimmed" style={{ overflowWrap: "anywhere" }}>
            {delivery.subject_id} · {ago(delivery.created_at)} · {tries}
            {delivery.status !== null && ` · answered ${delivery.status}`}
            {next}
          </Text>
          {delivery.error !== null && <Text size="sm">{sentence(delivery.error)}</Text>}
        </Stack>
        {enabled && delivery.state !== "pending" && (
          <Button variant="default" size="xs" loading={replay.isPending} onClick={() => replay.mutate(delivery)}>
            Send again
          </Button>
        )}
      </Group>
    </Card>
  );
}
