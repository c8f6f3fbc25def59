import { Anchor, Button, Code, Group, Paper, Stack, Text, Title } from "@mantine/core";
import { Link, useNavigate, useParams } from "react-router";

import { changes, useChange, useTask, useTaskRuns } from "../api/hooks";
import { isGone } from "../api/http";
import type { CronSchedule, Task, TaskRun } from "../api/types";
import { NextRuns, PastRuns, type ListedRun } from "../parts/agenda";
import { inWords } from "../parts/cron";
import { Prose } from "../parts/markdown";
import { Loaded, Page } from "../parts/page";
import { Plain } from "../parts/plain";
import { FormButton, SureButton } from "../parts/resource";
import { here } from "../parts/times";
import { ago, lasted } from "../parts/words";
import { NotFoundPage } from "./not-found";
import { RunButton, TaskForm, TaskStatus } from "./tasks";

export function TaskPage() {
  const { id = "" } = useParams();
  const task = useTask(id);
  if (isGone(task.error)) return <NotFoundPage />;
  return <Loaded query={task}>{(found) => <TaskView task={found} />}</Loaded>;
}

function TaskView({ task }: { task: Task }) {
  return (
    <Page title={task.title} actions={<Actions task={task} />}>
      <Stack>
        <Group gap="xs">
          <TaskStatus task={task} />
          <Text size="sm" c="dimmed">
            changed {ago(task.updated_at)} · <Anchor component={Link} to="/tasks" underline="always">all tasks</Anchor>
          </Text>
        </Group>
        {task.outcome !== null && <Part title="Outcome" text={task.outcome} />}
        {task.description !== "" && <Part title="Description" text={task.description} />}
        {task.details !== "" && <Part title="Details" text={task.details} />}
        {task.schedule !== null && <Schedule task={task} schedule={task.schedule} />}
        <Runs task={task} />
      </Stack>
    </Page>
  );
}

function Actions({ task }: { task: Task }) {
  const navigate = useNavigate();
  const remove = useChange("tasks", changes.deleteTask, true); // itself it must not be asked for any more
  return (
    <>
      {task.status !== "running" && <RunButton task={task} />}
      {task.schedule !== null && <PauseButton task={task} />}
      <FormButton variant="default" label="Edit" title="Edit the task" form={(done) => <TaskForm task={task} done={done} />} />
      {task.status !== "running" && (
        <SureButton
          label="Delete"
          title="Delete this task?"
          says="The task and the list of its runs are removed. The sessions that worked on it stay."
          yes="Delete the task"
          busy={remove.isPending}
          act={() => remove.mutate(task.id, { onSuccess: () => navigate("/tasks") })}
        />
      )}
    </>
  );
}

function Part({ title, text }: { title: string; text: string }) {
  return (
    <Paper withBorder p="md" component="section" aria-label={title}>
      <Title order={2} size="h5" mb="xs">
        {title}
      </Title>
      <Prose text={text} />
    </Paper>
  );
}

function Schedule({ task, schedule }: { task: Task; schedule: CronSchedule }) {
  return (
    <>
      <Text size="sm">
        Runs by itself: {inWords(schedule.expression) ?? "on a schedule"}, {schedule.timezone} <Code style={{ whiteSpace: "nowrap" }}>{schedule.expression}</Code>
      </Text>
      <NextRuns times={schedule.upcoming_runs_at} zone={schedule.timezone} held={heldBy(task)} />
    </>
  );
}

/** Why nothing starts by itself; undefined if it does. */
function heldBy({ paused_reason: reason }: Task): string | undefined {
  if (reason === null) return undefined;
  if (reason.type === "manual") return "Its schedule is paused: nothing starts at these times. What passes meanwhile is not made up for.";
  return "Its schedule was paused after an error, which the last run says. Change what is wrong under Edit, then unpause it.";
}

function PauseButton({ task }: { task: Task }) {
  const pause = useChange("tasks", changes.pauseTask);
  const unpause = useChange("tasks", changes.unpauseTask);
  const held = task.paused_reason === null ? pause : unpause;
  return (
    <Button variant="default" size="xs" loading={held.isPending} onClick={() => held.mutate(task.id)}>
      {task.paused_reason === null ? "Pause" : "Unpause"}
    </Button>
  );
}

function Runs({ task }: { task: Task }) {
  const runs = useTaskRuns(task.id);
  return (
    <Loaded query={runs}>
      {(found) => <PastRuns runs={found.map((run) => listed(run, task))} zone={task.schedule?.timezone ?? here()} none="It has not been run yet." />}
    </Loaded>
  );
}

function listed(run: TaskRun, task: Task): ListedRun {
  const { scheduled_at: planned, session_id: session, ended_at: ended, outcome } = run;
  const isKnown = outcome === task.outcome; // it stands above as the task's own
  return {
    id: run.id,
    at: planned ?? run.created_at,
    by: planned === null ? "hand" : "schedule",
    status: run.status,
    session,
    note: session === null || ended === null ? undefined : `took ${lasted(Date.parse(ended) - Date.parse(run.created_at))}`,
    skipped: run.skipped,
    failed: run.error ?? undefined,
    outcome: isKnown || outcome === null || outcome === "" ? undefined : <Plain text={outcome} />,
  };
}
