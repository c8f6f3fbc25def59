import { Paper, Select, Text } from "@mantine/core";
import { useState } from "react";
import { useParams } from "react-router";

import { useDeployment, useDeploymentRuns, useSessionsOf } from "../api/hooks";
import type { Deployment, DeploymentRun, Session } from "../api/types";
import { NextRuns, PastRuns, type ListedRun } from "../parts/agenda";
import { Prose } from "../parts/markdown";
import { Loaded, Section } from "../parts/page";
import { ThingPage } from "../parts/thing-page";
import { here } from "../parts/times";
import { sentence, waits } from "../parts/words";
import { DeploymentActions, DeploymentFacts, heldBy, messageOf, whatToDo } from "./deployments";
import { NotFoundPage } from "./not-found";

const STATES = ["started", "failed", "skipped", "queued", "open"];

export function DeploymentPage() {
  const { id = "" } = useParams();
  const deployment = useDeployment(id);
  return (
    <ThingPage
      query={deployment}
      all={{ to: "/deployments", label: "all deployments" }}
      gone={<NotFoundPage />}
      show={(found) => ({
        title: found.name,
        about: <DeploymentFacts deployment={found} whole />,
        actions: <DeploymentActions deployment={found} />,
        children: (
          <>
            <Work deployment={found} />
            {found.schedule !== null && found.archived_at === null && <NextRuns times={found.schedule.upcoming_runs_at} zone={found.schedule.timezone} held={heldBy(found)} />}
            <Runs deployment={found} />
          </>
        ),
      })}
    />
  );
}

function Work({ deployment }: { deployment: Deployment }) {
  const message = messageOf(deployment.initial_events);
  return (
    <Paper withBorder p="md">
      <Section title="What it does">
        {message === undefined ? <Text size="sm">Its sessions begin with {deployment.initial_events.length} events, which were given by the API.</Text> : <Prose text={message} />}
      </Section>
    </Paper>
  );
}

function Runs({ deployment }: { deployment: Deployment }) {
  const [state, setState] = useState<string | null>(null);
  const runs = useDeploymentRuns(deployment.id, state);
  const sessions = useSessionsOf(deployment.id).data ?? [];
  const choice = <Select aria-label="Which ones" placeholder="all" data={STATES} value={state} onChange={setState} size="xs" w={130} clearable />;
  return (
    <Loaded query={runs}>
      {(found) => (
        <PastRuns
          runs={found.map((run) => listed(run, sessions))}
          zone={deployment.schedule?.timezone ?? here()}
          none={state === null ? "It has not run yet." : "There are none."}
          controls={choice}
        />
      )}
    </Loaded>
  );
}

function listed(run: DeploymentRun, sessions: Session[]): ListedRun {
  const { trigger_context: trigger, skipped, error } = run;
  return {
    id: run.id,
    at: trigger.type === "schedule" ? trigger.scheduled_at : run.created_at,
    by: trigger.type === "schedule" ? "schedule" : "hand",
    status: statusOf(run, sessions.find(({ id }) => id === run.session_id)),
    session: run.session_id,
    skipped,
    failed:
      error === null ? undefined : (
        <>
          {sentence(error.message)} {whatToDo(error.type)}
        </>
      ),
  };
}

/** How it stands: by its session, once it has one. */
function statusOf(run: DeploymentRun, session: Session | undefined): string {
  if (run.state === "open") return "starting";
  if (session === undefined) return run.state;
  if (session.status === "idle") return waits(session) ? "waiting" : "done";
  return session.status;
}
