import { Alert, Container, Group, Skeleton, Stack, Title } from "@mantine/core";
import type { UseQueryResult } from "@tanstack/react-query";
import { CircleAlert } from "lucide-react";
import type { ReactNode } from "react";

import { sentence } from "./words";

/** A page with a heading and what can be done there. */
export function Page({ title, actions, children }: { title: string; actions?: ReactNode; children: ReactNode }) {
  return (
    <Container size="lg" py="md" px={{ base: "sm", sm: "md" }}>
      <Group justify="space-between" mb="md">
        <Title order={1} size="h2" style={{ overflowWrap: "anywhere" }}>
          {title}
        </Title>
        <Group gap="xs">{actions}</Group>
      </Group>
      {children}
    </Container>
  );
}

/** A part of a page that has a heading, and what can be chosen there. */
export function Section({ title, controls, children }: { title: string; controls?: ReactNode; children: ReactNode }) {
  return (
    <section aria-label={title}>
      <Group justify="space-between" mb="xs">
        <Title order={2} size="h5">
          {title}
        </Title>
        <Group gap="xs">{controls}</Group>
      </Group>
      {children}
    </section>
  );
}

/** What was asked for, once it is there; until then that it is coming, or why it is not. */
export function Loaded<T>({ query, children }: { query: UseQueryResult<T>; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error !== null) {
    return (
      <Alert color="red" icon={<CircleAlert size={18} />} title="This could not be loaded">
        {sentence(query.error.message)}
      </Alert>
    );
  }
  return (
    <Stack gap="xs" role="status" aria-busy="true" aria-label="Loading">
      {[1, 2, 3].map((n) => (
        <Skeleton key={n} h={56} />
      ))}
    </Stack>
  );
}
