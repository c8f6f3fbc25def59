/** Cards for what the agent waits for: a permission, an answer, the result of a client's own tool. */

import { Button, Checkbox, Group, Paper, Radio, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { CircleHelp, Hand } from "lucide-react";
import { useState, type FormEvent, type ReactNode } from "react";

import type { Call } from "../log/conversation";
import { CallInput } from "./call";

export interface Answers {
  allow: (call: Call) => void;
  deny: (call: Call, reason: string) => void;
  result: (call: Call, text: string) => void;
}

export function WaitingCard({ call, answers }: { call: Call; answers: Answers }) {
  if (!call.custom) return <PermissionCard call={call} answers={answers} />;
  return call.name === "AskUserQuestion" ? <QuestionCard call={call} answers={answers} /> : <ResultCard call={call} answers={answers} />;
}

function Card({ icon, title, children }: { icon: ReactNode; title: string; children: ReactNode }) {
  return (
    <Paper withBorder p="md" className="waiting" role="group" aria-label={title}>
      <Stack gap="sm">
        <Group gap="xs">
          {icon}
          <Text fw={600}>{title}</Text>
        </Group>
        {children}
      </Stack>
    </Paper>
  );
}

function PermissionCard({ call, answers }: { call: Call; answers: Answers }) {
  const [reason, setReason] = useState("");
  return (
    <Card icon={<Hand size={18} aria-hidden />} title={`May the agent use ${call.name}?`}>
      <CallInput call={call} />
      <TextInput size="xs" label="If not, why (the agent is told)" value={reason} onChange={(event) => setReason(event.currentTarget.value)} />
      <Group>
        <Button onClick={() => answers.allow(call)}>Allow</Button>
        <Button variant="default" onClick={() => answers.deny(call, reason)}>
          Deny
        </Button>
      </Group>
    </Card>
  );
}

interface Question {
  question: string;
  header?: string;
  options?: { label: string; description?: string }[];
  multiSelect?: boolean;
}

function QuestionCard({ call, answers }: { call: Call; answers: Answers }) {
  const questions = (call.input.questions as Question[] | undefined) ?? [];
  const [chosen, setChosen] = useState<Record<string, string | string[]>>({});
  const complete = questions.every(({ question }) => (chosen[question] ?? "").length > 0);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    answers.result(call, JSON.stringify({ answers: chosen }));
  };
  return (
    <Card icon={<CircleHelp size={18} aria-hidden />} title="The agent asks">
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

function ResultCard({ call, answers }: { call: Call; answers: Answers }) {
  const [text, setText] = useState("");
  return (
    <Card icon={<Hand size={18} aria-hidden />} title={`The agent calls ${call.name}, a tool of yours`}>
      <CallInput call={call} />
      <Textarea label="Its result" autosize minRows={2} value={text} onChange={(event) => setText(event.currentTarget.value)} />
      <Button onClick={() => answers.result(call, text)} style={{ alignSelf: "flex-start" }}>
        Send result
      </Button>
    </Card>
  );
}
