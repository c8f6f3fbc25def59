import { Anchor, Badge, Button, Card, Group, Select, Stack, Text, Title } from "@mantine/core";
import { useState } from "react";
import { Link, useParams } from "react-router";

import { changes, useChange, useDeliveries, useWebhook } from "../api/hooks";
import { isGone } from "../api/http";
import type { Delivery, DeliveryState, Webhook } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { Nothing } from "../parts/resource";
import { ago, sentence } from "../parts/words";
import { NotFoundPage } from "./not-found";
import { WebhookActions, WebhookFacts } from "./webhooks";

const COLORS: Record<DeliveryState, string> = { pending: "blue", delivered: "teal", failed: "red", held: "gray" };

export function WebhookPage() {
  const { id = "" } = useParams();
  const webhook = useWebhook(id);
  if (isGone(webhook.error)) return <NotFoundPage />;
  return (
    <Loaded query={webhook}>
      {(found) => (
        <Page title={found.name || found.url} actions={<WebhookActions webhook={found} />}>
          <Stack>
            <Text size="sm" c="dimmed" component="div">
              <WebhookFacts webhook={found} />
              <Anchor component={Link} to="/webhooks" underline="always">
                all webhooks
              </Anchor>
            </Text>
            <Deliveries webhook={found} />
          </Stack>
        </Page>
      )}
    </Loaded>
  );
}

function Deliveries({ webhook }: { webhook: Webhook }) {
  const [state, setState] = useState<string | null>(null);
  const deliveries = useDeliveries(webhook.id, state);
  const replay = useChange("webhooks", changes.replayWebhook);
  return (
    <section aria-label="Deliveries">
      <Group justify="space-between" mb="xs">
        <Title order={2} size="h5">
          Deliveries
        </Title>
        <Group gap="xs">
          <Select aria-label="Which ones" placeholder="all" data={Object.keys(COLORS)} value={state} onChange={setState} size="xs" w={130} clearable />
          {webhook.state === "enabled" && (
            <Button variant="default" size="xs" loading={replay.isPending} onClick={() => replay.mutate(webhook.id)}>
              Send again what failed
            </Button>
          )}
        </Group>
      </Group>
      <Loaded query={deliveries}>
        {(found) =>
          found.length === 0 ? (
            <Nothing>Nothing was sent yet.</Nothing>
          ) : (
            <Stack gap="xs" component="ul" p={0} m={0} style={{ listStyle: "none" }}>
              {found.map((delivery) => (
                <DeliveryCard key={delivery.id} delivery={delivery} enabled={webhook.state === "enabled"} />
              ))}
            </Stack>
          )
        }
      </Loaded>
    </section>
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
