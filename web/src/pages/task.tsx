import { Alert, Anchor, Card, Group, Paper, Stack, Text, Title } from "@mantine/core";
import { CircleAlert } from "lucide-react";
import { Link, useNavigate, useParams } from "react-router";

import { changes, useChange, useTask, useTaskRuns } from "../api/hooks";
import { isGone } from "../api/http";
import type { Task, TaskRun } from "../api/types";
import { Prose } from "../parts/markdown";
import { Loaded, Page } from "../parts/page";
import { Plain } from "../parts/plain";
import { FormButton, Nothing, SureButton } from "../parts/resource";
import { StatusBadge } from "../parts/status";
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

function Runs({ task }: { task: Task }) {
  const runs = useTaskRuns(task.id);
  return (
    <section aria-label="Runs">
      <Title order={2} size="h5" mb="xs">
        Runs
      </Title>
      <Loaded query={runs}>
        {(found) =>
          found.length === 0 ? (
            <Nothing>It has not been run yet.</Nothing>
          ) : (
            <Stack gap="xs" component="ul" p={0} m={0} style={{ listStyle: "none" }}>
              {found.map((run) => (
                <RunCard key={run.id} run={run} known={run.outcome === task.outcome} />
              ))}
            </Stack>
          )
        }
      </Loaded>
    </section>
  );
}

/** `known`: its outcome stands above as the task's own. */
function RunCard({ run, known }: { run: TaskRun; known: boolean }) {
  const over = run.ended_at !== null;
  const took = over ? lasted(Date.parse(run.ended_at!) - Date.parse(run.created_at)) : undefined;
  return (
    <Card withBorder padding="sm" component="li">
      <Group justify="space-between">
        <Group gap="xs">
          <StatusBadge status={run.status} />
          <Text size="sm" c="dimmed">
            begun {ago(run.created_at)}
            {took !== undefined && `, took ${took}`}
          </Text>
        </Group>
        {run.session_id !== null && (
          <Anchor component={Link} to={`/sessions/${run.session_id}`} size="sm">
            {over ? "See its session" : run.status === "waiting" ? "Answer it" : "Follow it"}
          </Anchor>
        )}
      </Group>
      {run.error !== null && (
        <Alert color="red" variant="light" p="xs" mt="xs" icon={<CircleAlert size={16} aria-hidden />}>
          {run.error}
        </Alert>
      )}
      {!known && run.outcome !== null && run.outcome !== "" && (
        <Text size="sm" mt="xs" lineClamp={3}>
          <Plain text={run.outcome} />
        </Text>
      )}
    </Card>
  );
}
