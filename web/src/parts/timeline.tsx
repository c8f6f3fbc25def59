import { Badge, Center, Container, Group, Loader, Paper, Stack, Text, Tooltip } from "@mantine/core";
import { useEffect, useMemo, useState, type ReactNode } from "react";

import type { Session } from "../api/types";
import type { LiveSession } from "../live/session";
import { turnsOf, type Bar, type BarKind, type Turn } from "../log/timeline";
import { TurnActions } from "./turn-actions";
import { lasted, money, tokens } from "./words";

const LANES: Record<BarKind, { row: number; colour: string; word: string }> = {
  wake: { row: 0, colour: "gray", word: "Start" },
  model: { row: 0, colour: "cyan", word: "Model" },
  tool: { row: 1, colour: "teal", word: "Tools" },
  wait: { row: 2, colour: "grape", word: "Waits for you" },
  retry: { row: 3, colour: "orange", word: "Retries" },
};

const OUTCOMES: Record<string, string> = {
  end_turn: "finished",
  interrupted: "interrupted",
  requires_action: "waits for you",
  retries_exhausted: "given up",
  budget_reached: "out of budget",
  refusal: "declined",
};

export function Timeline({ live, session }: { live: LiveSession; session: Session }) {
  const turns = useMemo(() => turnsOf(live.events), [live.events]);
  const { more, busy, load } = live.older;
  useEffect(() => {
    if (more && !busy) load(true); // turns are counted from the first one
  }, [more, busy, load]);
  const now = useNow(turns.some((turn) => turn.to === undefined));
  if (more || !live.loaded) {
    return (
      <Center py="xl">
        <Loader role="status" aria-label="Loading" />
      </Center>
    );
  }
  if (turns.length === 0) {
    return (
      <Text c="dimmed" ta="center" py="xl">
        Nothing has happened yet.
      </Text>
    );
  }
  return (
    <Container size="lg" py="md">
      <Legend />
      <Stack mt="sm">
        {turns.map((turn, nth) => (
          <TurnView key={turn.number} turn={turn} before={turns[nth - 1]} now={now} actions={turn.end && <TurnActions session={session} live={live} eventId={turn.end} />} />
        ))}
      </Stack>
    </Container>
  );
}

/** The time, moving while something is under way. */
function useNow(moving: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!moving) return;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [moving]);
  return now;
}

function Legend() {
  return (
    <Group gap="xs">
      {Object.values(LANES).map(({ colour, word }) => (
        <Badge key={word} color={colour} variant="light" tt="none">
          {word}
        </Badge>
      ))}
    </Group>
  );
}

function TurnView({ turn, before, now, actions }: { turn: Turn; before?: Turn; now: number; actions: ReactNode }) {
  const end = turn.to ?? now;
  const { input_tokens, output_tokens, cache_read_input_tokens } = turn.usage;
  return (
    <section aria-label={`Turn ${turn.number}`}>
      {before?.to !== undefined && turn.from - before.to > 1000 && (
        <Text size="xs" c="dimmed" ta="center" mb="xs">
          rested for {lasted(turn.from - before.to)}
        </Text>
      )}
      <Paper withBorder p="sm">
        <Group justify="space-between" mb={6} wrap="nowrap">
          <Text size="sm" fw={600} truncate>
            {turn.number}. {turn.title || "(no message)"}
          </Text>
          <Text size="xs" c="dimmed" style={{ flexShrink: 0 }}>
            {lasted(end - turn.from)} · {turn.outcome === undefined ? "at work" : (OUTCOMES[turn.outcome] ?? turn.outcome)}
          </Text>
        </Group>
        <div className="turn-bars" role="img" aria-label={described(turn, end)} style={{ height: heightOf(turn) }}>
          {turn.bars.map((bar) => (
            <BarView key={bar.id} bar={bar} turn={turn} end={end} />
          ))}
        </div>
        <Group justify="space-between" mt={6} gap={4}>
          <Text size="xs" c="dimmed">
            {new Date(turn.from).toLocaleString()} · {tokens(input_tokens)} in, {tokens(output_tokens)} out, {tokens(cache_read_input_tokens)} from cache
            {turn.cents !== undefined && ` · ${money(turn.cents)}`}
          </Text>
          {actions}
        </Group>
      </Paper>
    </section>
  );
}

const ROW = 20;

/** As many rows as it needs, so that a simple turn is a small one. */
function heightOf(turn: Turn): number {
  return 4 + ROW * (1 + Math.max(1, ...turn.bars.map(({ kind }) => LANES[kind].row)));
}

function BarView({ bar, turn, end }: { bar: Bar; turn: Turn; end: number }) {
  const whole = Math.max(end - turn.from, 1);
  const to = bar.to ?? end;
  const { row, colour } = LANES[bar.kind];
  const shown = bar.failed ? "red" : colour;
  return (
    <Tooltip label={`${bar.label}: ${lasted(to - bar.from)}${bar.failed ? ", failed" : ""}`}>
      <span
        style={{
          top: 4 + row * ROW,
          left: `${((bar.from - turn.from) / whole) * 100}%`,
          width: `${Math.max(((to - bar.from) / whole) * 100, 0.3)}%`,
          background: `var(--mantine-color-${shown}-light-hover)`,
          borderLeft: `3px solid var(--mantine-color-${shown}-filled)`,
        }}
      >
        {(to - bar.from) / whole > 0.12 ? bar.label : ""}
      </span>
    </Tooltip>
  );
}

function described(turn: Turn, end: number): string {
  const parts = turn.bars.map((bar) => `${bar.label} ${lasted((bar.to ?? end) - bar.from)}`);
  return `Turn ${turn.number}: ${parts.join(", ") || "nothing but waiting"}`;
}
