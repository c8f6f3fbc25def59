import { Button, Group, Select, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";

import { changes, useAgents, useEnvironments, useSave, useTasks, useWaitingSessions } from "../api/hooks";
import type { Planned, Task } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { PlacementFields, usePlacement, useSubmit } from "../parts/placement";
import { Plain } from "../parts/plain";
import { FormButton, FormTrouble, ThingCard, Things } from "../parts/resource";
import { SCHEDULE_PATHS, ScheduleFields, useSchedule } from "../parts/schedule-fields";
import { StatusBadge } from "../parts/status";
import { useTroubles } from "../parts/trouble";
import { VaultChoice } from "../parts/vault-choice";
import { ago } from "../parts/words";

export function TasksPage() {
  const tasks = useTasks();
  return (
    <Page title="Tasks" actions={<FormButton label="New task" title="New task" form={(done) => <TaskForm done={done} />} />}>
      <Loaded query={tasks}>
        {(found) => (
          <Things none="No tasks yet. A task is a piece of work that an agent does to the end with nobody watching.">
            {found.map((task) => (
              <ThingCard
                key={task.id}
                name={task.title}
                to={`/tasks/${task.id}`}
                about={<About task={task} />}
                actions={task.status !== "running" && <RunButton task={task} />}
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

/** How a task stands: one that works may wait for somebody. */
export function TaskStatus({ task }: { task: Task }) {
  const waits = useWaitingSessions().data?.data.some((session) => session.task_id === task.id);
  return <StatusBadge status={task.status === "running" && waits ? "waiting" : task.status} />;
}

function About({ task }: { task: Task }) {
  const next = task.schedule?.upcoming_runs_at[0];
  return (
    <Stack gap={4} mt={4}>
      <Group gap="xs">
        <TaskStatus task={task} />
        <Text size="xs">{ago(task.updated_at)}</Text>
        {next !== undefined && (task.paused_reason === null ? <Text size="xs">next run {ago(next)}</Text> : <StatusBadge status="paused" />)}
      </Group>
      {(task.outcome ?? task.description) && (
        <Text size="sm" lineClamp={2}>
          <Plain text={task.outcome ?? task.description} />
        </Text>
      )}
    </Stack>
  );
}

const NEW: Planned = { schedule: null, missed_runs: { policy: "skip", window_seconds: 86_400 }, overlap: "skip", paused_reason: null };
const PATHS = { title: "title", agent: "agent", environment_id: "place", ...SCHEDULE_PATHS };

export function TaskForm({ task, done }: { task?: Task; done: () => void }) {
  const create = useSave("tasks", changes.createTask);
  const update = useSave("tasks", changes.updateTask);
  const agents = (useAgents().data ?? []).filter((agent) => agent.archived_at === null || agent.id === task?.agent);
  const places = (useEnvironments().data ?? []).filter((place) => place.archived_at === null || place.id === task?.environment_id);
  const [title, setTitle] = useState(task?.title ?? "");
  const [description, setDescription] = useState(task?.description ?? "");
  const [details, setDetails] = useState(task?.details ?? "");
  const [agent, setAgent] = useState(task?.agent ?? null);
  const [place, setPlace] = useState(task?.environment_id ?? null);
  const schedule = useSchedule(task ?? NEW);
  const { form, troubles } = useTroubles(create.error ?? update.error, { paths: PATHS });

  const submit = (event: FormEvent) => {
    event.preventDefault();
    const body = { title, description, details, ...schedule.request };
    if (task) update.mutate({ id: task.id, ...body, agent, environment_id: place }, { onSuccess: done });
    else create.mutate({ ...body, ...(agent ? { agent } : {}), ...(place ? { environment_id: place } : {}) }, { onSuccess: done });
  };

  return (
    <form ref={form} onSubmit={submit}>
      <Stack>
        <TextInput label="Title" error={troubles.title} value={title} onChange={(event) => setTitle(event.currentTarget.value)} maxLength={500} required data-autofocus />
        <Textarea label="Description" description="What is to be done, and how one sees that it is." autosize minRows={3} maxRows={10} value={description} onChange={(event) => setDescription(event.currentTarget.value)} />
        <Textarea label="Details" description="Notes and plans. The agent keeps them up to date." autosize minRows={2} maxRows={10} value={details} onChange={(event) => setDetails(event.currentTarget.value)} />
        <Select label="Agent" placeholder="chosen when it is run" data={agents.map(({ id, name }) => ({ value: id, label: name }))} value={agent} onChange={setAgent} error={troubles.agent} required={schedule.on} clearable searchable />
        <Select label="Environment" placeholder="chosen when it is run" data={places.map(({ id, name }) => ({ value: id, label: name }))} value={place} onChange={setPlace} error={troubles.place} required={schedule.on} clearable searchable />
        <ScheduleFields schedule={schedule} troubles={troubles} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={create.isPending || update.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

export function RunButton({ task }: { task: Task }) {
  return <FormButton variant="default" label="Run" title={`Run “${task.title}”`} form={(done) => <RunForm task={task} done={done} />} />;
}

function RunForm({ task, done }: { task: Task; done: () => void }) {
  const navigate = useNavigate();
  const run = useSave("tasks", changes.runTask);
  const placement = usePlacement({ agent: task.agent, place: task.environment_id });
  const [instructions, setInstructions] = useState("");
  const [vaults, setVaults] = useState<string[]>([]);
  const { form, troubles } = useTroubles(run.error, { paths: { vault_ids: "vaults", harness: "harness" } });
  const begun = () => {
    done();
    navigate(`/tasks/${task.id}`);
  };
  const { submit, waiting, disabled } = useSubmit(placement, (request) =>
    run.mutate({ id: task.id, ...request, ...(instructions ? { instructions } : {}), ...(vaults.length > 0 ? { vault_ids: vaults } : {}) }, { onSuccess: begun }),
  );
  return (
    <form ref={form} onSubmit={submit}>
      <Stack>
        <Text size="sm" c="dimmed">
          A session works on the task to the end. It goes on when you leave, and you can follow it.
        </Text>
        <Textarea label="Anything else for this run" autosize minRows={2} maxRows={8} value={instructions} onChange={(event) => setInstructions(event.currentTarget.value)} data-autofocus />
        <PlacementFields placement={placement} troubles={troubles} />
        <VaultChoice chosen={vaults} setChosen={setVaults} error={troubles.vaults} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={waiting || run.isPending} disabled={disabled}>
          Run it
        </Button>
      </Stack>
    </form>
  );
}
