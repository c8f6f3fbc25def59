/** Cards for what the agent waits for: a permission, an answer, the result of a client's own tool. */

import { Button, Checkbox, Group, Paper, Radio, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { CircleHelp, Hand } from "lucide-react";
import { useState, type FormEvent, type ReactNode } from "react";

import type { Call } from "../log/conversation";
import { CallInput } from "./call";

export interface Answers {
  allow: (call: Call, changed?: Record<string, unknown>) => void;
  deny: (call: Call, reason: string) => void;
  result: (call: Call, text: string) => void;
}

interface Waiting {
  call: Call;
  answers: Answers;
  /** Its answer is on the way: a second one would be refused. */
  sent: boolean;
}

export function WaitingCard(waiting: Waiting) {
  if (!waiting.call.custom) return <PermissionCard {...waiting} />;
  return waiting.call.name === "AskUserQuestion" ? <QuestionCard {...waiting} /> : <ResultCard {...waiting} />;
}

function Card({ icon, title, sent, children }: { icon: ReactNode; title: string; sent: boolean; children: ReactNode }) {
  return (
    <Paper withBorder p="md" className="waiting" role="group" aria-label={title}>
      <Stack gap="sm">
        <Group gap="xs">
          {icon}
          <Text fw={600}>{title}</Text>
        </Group>
        <fieldset disabled={sent}>{children}</fieldset>
        {sent && (
          <Text size="xs" role="status">
            Sending your answer…
          </Text>
        )}
      </Stack>
    </Paper>
  );
}

function PermissionCard({ call, answers, sent }: Waiting) {
  const [reason, setReason] = useState("");
  const [draft, setDraft] = useState<string>();
  const changed = draft === undefined ? undefined : readBack(call, draft);
  const wrong = draft !== undefined && changed === undefined;
  return (
    <Card icon={<Hand size={18} aria-hidden />} title={`May the agent use ${call.name}?`} sent={sent}>
      {draft === undefined ? (
        <CallInput call={call} />
      ) : (
        <Textarea
          label="What it may do instead"
          autosize
          minRows={2}
          maxRows={16}
          styles={{ input: { fontFamily: "monospace", fontSize: 13 } }}
          value={draft}
          onChange={(event) => setDraft(event.currentTarget.value)}
          error={wrong ? "This is not a JSON object." : undefined}
          autoFocus
        />
      )}
      <TextInput size="xs" label="If not, why (the agent is told)" value={reason} onChange={(event) => setReason(event.currentTarget.value)} />
      <Group>
        <Button disabled={wrong} onClick={() => answers.allow(call, changed)}>
          {draft === undefined ? "Allow" : "Allow this"}
        </Button>
        <Button variant="default" onClick={() => answers.deny(call, reason)}>
          Deny
        </Button>
        <Button variant="subtle" color="gray" onClick={() => setDraft(draft === undefined ? writtenOut(call) : undefined)}>
          {draft === undefined ? "Change it" : "Leave it as it was"}
        </Button>
      </Group>
    </Card>
  );
}

/** A call's input for somebody to edit: a command as it is, anything else as JSON. */
function writtenOut(call: Call): string {
  return typeof call.input.command === "string" ? call.input.command : JSON.stringify(call.input, null, 2);
}

function readBack(call: Call, text: string): Record<string, unknown> | undefined {
  if (typeof call.input.command === "string") return { ...call.input, command: text };
  try {
    const given: unknown = JSON.parse(text);
    return typeof given === "object" && given !== null && !Array.isArray(given) ? (given as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

interface Question {
  question: string;
  header?: string;
  options?: { label: string; description?: string }[];
  multiSelect?: boolean;
}

function QuestionCard({ call, answers, sent }: Waiting) {
  const questions = (call.input.questions as Question[] | undefined) ?? [];
  const [chosen, setChosen] = useState<Record<string, string | string[]>>({});
  const complete = questions.every(({ question }) => (chosen[question] ?? "").length > 0);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    answers.result(call, JSON.stringify({ answers: chosen }));
  };
  return (
    <Card icon={<CircleHelp size={18} aria-hidden />} title="The agent asks" sent={sent}>
      <form onSubmit={submit}>
        <Stack>
          {questions.map((question) => (
            <Choices key={question.question} question={question} chosen={chosen[question.question]} choose={(value) => setChosen({ ...chosen, [question.question]: value })} />
          ))}
          <Button type="submit" disabled={!complete} style={{ alignSelf: "flex-start" }}>
            Answer
          </Button>
        </Stack>
      </form>
    </Card>
  );
}

function Choices({ question, chosen, choose }: { question: Question; chosen?: string | string[]; choose: (value: string | string[]) => void }) {
  const options = question.options ?? [];
  const own = typeof chosen === "string" && !options.some(({ label }) => label === chosen) ? chosen : "";
  if (question.multiSelect) {
    return (
      <Checkbox.Group label={question.question} value={Array.isArray(chosen) ? chosen : []} onChange={choose}>
        <Stack gap={6} mt={4}>
          {options.map(({ label, description }) => (
            <Checkbox key={label} value={label} label={label} description={description} />
          ))}
        </Stack>
      </Checkbox.Group>
    );
  }
  return (
    <Stack gap={6}>
      <Radio.Group label={question.question} value={typeof chosen === "string" ? chosen : ""} onChange={choose}>
        <Stack gap={6} mt={4}>
          {options.map(({ label, description }) => (
            <Radio key={label} value={label} label={label} description={description} />
          ))}
        </Stack>
      </Radio.Group>
      <TextInput size="xs" placeholder="or in your own words" aria-label={`Your own answer to: ${question.question}`} value={own} onChange={(event) => choose(event.currentTarget.value)} />
    </Stack>
  );
}

function ResultCard({ call, answers, sent }: Waiting) {
  const [text, setText] = useState("");
  return (
    <Card icon={<Hand size={18} aria-hidden />} title={`The agent calls ${call.name}, a tool of yours`} sent={sent}>
      <CallInput call={call} />
      <Textarea label="Its result" autosize minRows={2} value={text} onChange={(event) => setText(event.currentTarget.value)} />
      <Button onClick={() => answers.result(call, text)} style={{ alignSelf: "flex-start" }}>
        Send result
      </Button>
    </Card>
  );
}
