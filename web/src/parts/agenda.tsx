/** What runs next and what ran, day by day: for all that can have a schedule. */

import { Alert, Anchor, Card, Group, Stack, Text, Title } from "@mantine/core";
import { CircleAlert, Info } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "react-router";

import type { Skipped } from "../api/types";
import { Section } from "./page";
import { StatusBadge } from "./status";
import { dayIn, here, timeIn, today } from "./times";
import { ago } from "./words";

/** A run as it is listed. */
export interface ListedRun {
  id: string;
  /** When it was to run, or when somebody started it. */
  at: string;
  by: "schedule" | "hand";
  status: string;
  session: string | null;
  /** What else there is to say of it, on the line of its state. */
  note?: string;
  skipped: Skipped | null;
  /** Why it failed, and what can be done. */
  failed?: ReactNode;
  /** What came of it. */
  outcome?: ReactNode;
}

/** The times that come next, soonest first. `held`: why nothing starts at them. */
export function NextRuns({ times, zone, held }: { times: string[]; zone: string; held?: ReactNode }) {
  return (
    <Section title="Next">
      {held !== undefined && (
        <Alert color="yellow" variant="light" p="xs" mb="xs" icon={<Info size={16} aria-hidden />}>
          {held}
        </Alert>
      )}
      {times.length === 0 ? (
        <Text c="dimmed">Nothing is planned.</Text>
      ) : (
        <Days items={times} at={(time) => time} zone={zone}>
          {(time) => (
            <Card key={time} withBorder padding="xs" component="li">
              <Group gap="xs">
                <Moment at={time} zone={zone} />
                <StatusBadge status={held === undefined ? "planned" : "paused"} />
              </Group>
            </Card>
          )}
        </Days>
      )}
    </Section>
  );
}

/** What ran or did not, newest first. */
export function PastRuns({ runs, zone, none, controls }: { runs: ListedRun[]; zone: string; none: string; controls?: ReactNode }) {
  return (
    <Section title="Runs" controls={controls}>
      {runs.length === 0 ? (
        <Text c="dimmed">{none}</Text>
      ) : (
        <Days items={runs} at={(run) => run.at} zone={zone}>
          {(run) => <RunCard key={run.id} run={run} zone={zone} />}
        </Days>
      )}
    </Section>
  );
}

function Days<T>({ items, at, zone, children }: { items: T[]; at: (item: T) => string; zone: string; children: (item: T) => ReactNode }) {
  const days = new Map<string, T[]>();
  for (const item of items) {
    const day = dayIn(at(item), zone);
    days.set(day, [...(days.get(day) ?? []), item]);
  }
  return (
    <Stack gap="md">
      {[...days].map(([day, those]) => (
        <div key={day}>
          <Title order={3} size="h6" fw={600} mb={6}>
            {day}
            {today(zone).get(day)}
          </Title>
          <Stack gap="xs" component="ul" p={0} m={0} style={{ listStyle: "none" }}>
            {those.map(children)}
          </Stack>
        </div>
      ))}
    </Stack>
  );
}

/** A time of day in a zone, and what clocks show where the reader is, if that is something else. */
function Moment({ at, zone }: { at: string; zone: string }) {
  const mine = here();
  const [there, day] = [timeIn(at, zone), dayIn(at, mine)];
  const yours = timeIn(at, mine) + (day === dayIn(at, zone) ? "" : `, ${day}`);
  return (
    <Text component="span" size="sm">
      <Text component="time" dateTime={at} fw={600} inherit>
        {there}
      </Text>
      {yours !== there && (
        <Text component="span" c="dimmed" inherit>
          {" "}
          ({yours} where you are)
        </Text>
      )}
    </Text>
  );
}

function RunCard({ run, zone }: { run: ListedRun; zone: string }) {
  return (
    <Card withBorder padding="xs" component="li">
      <Group justify="space-between">
        <Group gap="xs">
          <Moment at={run.at} zone={zone} />
          <StatusBadge status={run.status} />
          <Text size="sm" c="dimmed">
            {run.by === "hand" ? "by hand" : "on schedule"}
            {run.note !== undefined && `, ${run.note}`}
          </Text>
        </Group>
        {run.session !== null && (
          <Anchor component={Link} to={`/sessions/${run.session}`} size="sm">
            {LINKS[run.status] ?? "See its session"}
          </Anchor>
        )}
      </Group>
      {run.skipped !== null && (
        <Text size="sm" mt={6}>
          {whySkipped(run.skipped)}
        </Text>
      )}
      {run.failed !== undefined && (
        <Alert color="red" variant="light" p="xs" mt={6} icon={<CircleAlert size={16} aria-hidden />}>
          {run.failed}
        </Alert>
      )}
      {run.outcome !== undefined && (
        <Text size="sm" mt={6} lineClamp={3}>
          {run.outcome}
        </Text>
      )}
    </Card>
  );
}

const LINKS: Record<string, string> = { starting: "Follow it", running: "Follow it", rescheduling: "Follow it", waiting: "Answer it" };

const WHY: Record<string, string> = {
  missed: "No server ran at that time, and such times are not made up for.",
  overlap: "The last run still worked, and then the new one is skipped.",
  queue_full: "The last run still worked, and another one waited already: only one can.",
  replaced: "While it waited for the last run, a later one replaced it.",
};

function whySkipped({ reason, count, since }: Skipped): string {
  const why = WHY[reason] ?? reason;
  return count > 1 && since !== null ? `${why} It stands for ${count} times, the first ${ago(since)}.` : why;
}
