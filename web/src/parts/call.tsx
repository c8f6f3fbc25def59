import { Accordion, Badge, Code, Group, Loader, ScrollArea, Stack, Text } from "@mantine/core";
import { diffLines } from "diff";
import { Check, CircleHelp, CircleStop, Globe, Hand, Pencil, Search, Terminal, Wrench, X, type LucideIcon } from "lucide-react";

import type { Call, CallState } from "../log/conversation";
import { Output } from "./output";
import { Picture } from "./picture";
import { lasted } from "./words";

const ICONS: Record<string, LucideIcon> = {
  bash: Terminal,
  write: Pencil,
  edit: Pencil,
  read: Search,
  glob: Search,
  grep: Search,
  web_fetch: Globe,
  web_search: Globe,
};

const STATES: Record<CallState, { word: string; colour: string; icon?: LucideIcon }> = {
  running: { word: "running", colour: "blue" },
  waiting: { word: "waits for you", colour: "grape", icon: Hand },
  done: { word: "done", colour: "teal", icon: Check },
  failed: { word: "failed", colour: "red", icon: X },
  denied: { word: "not allowed", colour: "red", icon: X },
  interrupted: { word: "interrupted", colour: "gray", icon: CircleStop },
  unknown: { word: "cut off", colour: "gray", icon: CircleHelp },
};

/** A tool call, folded: what it is and how it went on one line, the rest on demand. */
export function CallCard({ call }: { call: Call }) {
  const Icon = ICONS[call.name.toLowerCase()] ?? Wrench;
  return (
    <Accordion variant="contained" chevronSize={16} className="call" order={3}>
      <Accordion.Item value="call">
        <Accordion.Control icon={<Icon size={16} aria-hidden />}>
          <Group gap="xs" wrap="nowrap">
            <Text size="sm" fw={600} style={{ flexShrink: 0 }}>
              {call.server ? `${call.server}: ${call.name}` : call.name}
            </Text>
            <Text size="sm" c="dimmed" truncate ff="monospace">
              {gist(call)}
            </Text>
            <Outcome call={call} />
          </Group>
        </Accordion.Control>
        <Accordion.Panel>
          <Stack gap="xs">
            <CallInput call={call} />
            {call.asked !== undefined && (
              <Text size="xs" c="dimmed">
                Changed by whoever allowed it; the agent had asked for: {gist({ ...call, input: call.asked })}
              </Text>
            )}
            {call.images?.map((block, nth) => <Picture key={nth} block={block} />)}
            {call.output !== undefined && <Output text={call.output} failed={call.state === "failed"} />}
          </Stack>
        </Accordion.Panel>
      </Accordion.Item>
    </Accordion>
  );
}

function Outcome({ call }: { call: Call }) {
  const { word, colour, icon: Icon } = STATES[call.state];
  const took = call.startedAt !== undefined && call.endedAt !== undefined ? lasted(call.endedAt - call.startedAt) : "";
  return (
    <Group gap={6} wrap="nowrap" ml="auto" style={{ flexShrink: 0 }}>
      <Text size="xs" c="dimmed" visibleFrom="xs">
        {took}
      </Text>
      <Badge size="sm" variant="light" color={colour} tt="none" leftSection={Icon ? <Icon size={11} aria-hidden /> : <Loader size={10} />}>
        {word}
      </Badge>
    </Group>
  );
}

/** What a call is about, in a few words. */
export function gist(call: Call): string {
  const { command, file_path, path, pattern, url, query } = call.input as Record<string, string | undefined>;
  const found = command ?? file_path ?? url ?? query ?? pattern ?? path;
  return (found ?? JSON.stringify(call.input)).replaceAll("\n", " ⏎ ").slice(0, 160);
}

export function CallInput({ call }: { call: Call }) {
  const { command, old_string, new_string, file_path, content } = call.input as Record<string, string | undefined>;
  if (old_string !== undefined && new_string !== undefined) return <Diff path={file_path} before={old_string} after={new_string} />;
  if (content !== undefined && file_path !== undefined) return <Diff path={file_path} before="" after={content} />;
  return <Code block className="whole">{command ?? JSON.stringify(call.input, null, 2)}</Code>;
}

export function Diff({ path, before, after }: { path?: string; before: string; after: string }) {
  return (
    <div>
      {path !== undefined && (
        <Text size="xs" ff="monospace" c="dimmed">
          {path}
        </Text>
      )}
      <ScrollArea.Autosize mah={320} type="auto" viewportProps={{ tabIndex: 0 }}>
        <pre className="diff">
          {diffLines(before, after).flatMap((part, nth) =>
            lines(part.value).map((line, n) => (
              <span key={`${nth} ${n}`} className={part.added ? "added" : part.removed ? "removed" : ""}>
                {part.added ? "+ " : part.removed ? "− " : "  "}
                {line}
                {"\n"}
              </span>
            )),
          )}
        </pre>
      </ScrollArea.Autosize>
    </div>
  );
}

function lines(text: string): string[] {
  const all = text.split("\n");
  return all.at(-1) === "" ? all.slice(0, -1) : all;
}
