/** When something runs by itself, as a form has it. */

import { Select, Stack, Switch, Text, TextInput } from "@mantine/core";
import { useState } from "react";

import type { MissedPolicy, OverlapPolicy, Planned } from "../api/types";
import { inWords } from "./cron";
import { here, zones } from "./times";
import type { Troubles } from "./trouble";

/** Which field of the form each of the API's is. */
export const SCHEDULE_PATHS = { schedule: "expression", "schedule.timezone": "timezone", missed_runs: "missed", overlap: "overlap" };

export const MISSED: Record<MissedPolicy, string> = {
  skip: "Skip them",
  latest: "Run the latest of them",
  all: "Run all of them",
};

export const OVERLAP: Record<OverlapPolicy, string> = {
  allow: "Run all the same, beside it",
  skip: "Skip the new run",
  queue: "Run when the last one rests; one can wait",
  replace: "Interrupt the last one, then run",
};

const WINDOWS: Record<string, string> = { 600: "10 minutes", 3600: "an hour", 21_600: "6 hours", 86_400: "a day", 604_800: "a week" };

export const windowInWords = (seconds: number): string => WINDOWS[seconds] ?? `${Math.round(seconds / 60)} minutes`;

/** What was chosen; `request` are the fields as the API has them. */
export function useSchedule(first: Planned) {
  const [on, setOn] = useState(first.schedule !== null);
  const [expression, setExpression] = useState(first.schedule?.expression ?? "0 9 * * 1-5");
  const [timezone, setTimezone] = useState(first.schedule?.timezone ?? here());
  const [missed, setMissed] = useState(first.missed_runs.policy);
  const [window, setWindow] = useState(first.missed_runs.window_seconds);
  const [overlap, setOverlap] = useState(first.overlap);
  const request = {
    schedule: on ? { type: "cron", expression, timezone } : null,
    missed_runs: { policy: missed, window_seconds: window },
    overlap,
  };
  return { on, expression, timezone, missed, window, overlap, request, set: { on: setOn, expression: setExpression, timezone: setTimezone, missed: setMissed, window: setWindow, overlap: setOverlap } };
}

export function ScheduleFields({ schedule, troubles }: { schedule: ReturnType<typeof useSchedule>; troubles: Troubles }) {
  const { on, set } = schedule;
  return (
    <>
      <Switch label="Run on a schedule" checked={on} onChange={(event) => set.on(event.currentTarget.checked)} />
      {on && <Times schedule={schedule} troubles={troubles} />}
    </>
  );
}

function Times({ schedule, troubles }: { schedule: ReturnType<typeof useSchedule>; troubles: Troubles }) {
  const { expression, timezone, missed, window, overlap, set } = schedule;
  const windows = { ...WINDOWS, [window]: windowInWords(window) };
  return (
    <Stack>
      <TextInput
        label="Cron expression"
        description="Minute, hour, day of the month, month, day of the week (0 and 7 are Sunday)."
        value={expression}
        onChange={(event) => set.expression(event.currentTarget.value)}
        error={troubles.expression}
        styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
        required
      />
      <Text size="sm" role="status">
        {inWords(expression) ?? "This is no cron expression yet."}
      </Text>
      <Select label="Time zone" data={zones(timezone)} value={timezone} onChange={(zone) => set.timezone(zone ?? "UTC")} error={troubles.timezone} limit={100} allowDeselect={false} searchable />
      <Select
        label="Times at which no server ran"
        data={choicesOf(MISSED)}
        value={missed}
        onChange={(policy) => set.missed(policy as MissedPolicy)}
        error={troubles.missed}
        allowDeselect={false}
      />
      {missed !== "skip" && (
        <Select label="How far back" data={choicesOf(windows)} value={String(window)} onChange={(seconds) => set.window(Number(seconds))} allowDeselect={false} />
      )}
      <Select label="If the last run still works" data={choicesOf(OVERLAP)} value={overlap} onChange={(policy) => set.overlap(policy as OverlapPolicy)} error={troubles.overlap} allowDeselect={false} />
    </Stack>
  );
}

const choicesOf = (words: Record<string, string>) => Object.entries(words).map(([value, label]) => ({ value, label }));
