/** The server's resources as hooks: what is shown is asked for again after every change. */

import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import { sentence } from "../parts/words";
import { all, ApiError, get, post, remove } from "./http";
import type { Agent, CredentialValidation, Delivery, Deployment, DeploymentRun, Environment, EnvironmentKey, Harness, Key, Me, Page, Session, Task, TaskRun, Vault, VaultCredential, Webhook, Workspace } from "./types";

export const useMe = () =>
  useQuery({ queryKey: ["me"], queryFn: () => get<Me>("/auth/me"), staleTime: 60_000, retry: false });

export const useSessions = (archived: boolean) =>
  useQuery({
    queryKey: ["sessions", archived],
    queryFn: () => all<Session>(`/v1/sessions?include_archived=${archived}`),
    refetchInterval: 5000,
  });

const IN_SIGHT = 5000;
const OUT_OF_SIGHT = 30_000;

/** The sessions that wait for somebody: one request, whatever number of sessions there is. */
export const useWaitingSessions = () =>
  useQuery({
    queryKey: ["sessions", "waiting"],
    queryFn: () => get<Page<Session>>("/v1/sessions?waiting=true&limit=100"),
    refetchInterval: () => (document.hidden ? OUT_OF_SIGHT : IN_SIGHT),
    refetchIntervalInBackground: true, // the title of a tab that nobody looks at says what waits
  });

export const useSession = (id: string, enabled = true) =>
  useQuery({ queryKey: ["session", id], queryFn: () => get<Session>(`/v1/sessions/${id}`), enabled });

export const useAgents = () =>
  useQuery({ queryKey: ["agents"], queryFn: () => all<Agent>("/v1/agents") });

export const useEnvironments = () =>
  useQuery({ queryKey: ["environments"], queryFn: () => all<Environment>("/v1/environments") });

export const useEnvironment = (id: string) =>
  useQuery({ queryKey: ["environments", id], queryFn: () => get<Environment>(`/v1/environments/${id}`) });

/** What lets workers of a self-hosted environment in. */
export const useEnvironmentKeys = (id: string) =>
  useQuery({ queryKey: ["environments", id, "keys"], queryFn: async () => (await get<{ data: EnvironmentKey[] }>(`/roost/v1/environments/${id}/keys`)).data });

/** Those that the server found when it started. */
export const useHarnesses = () =>
  useQuery({ queryKey: ["harnesses"], queryFn: async () => (await get<{ data: Harness[] }>("/roost/v1/harnesses")).data, staleTime: 60_000 });

/** Only administrators may see them. */
export const useKeys = (enabled = true) =>
  useQuery({ queryKey: ["keys"], queryFn: async () => (await get<{ data: Key[] }>("/roost/v1/keys")).data, enabled });

const MOVING = 3000;
const STILL = 15_000;

export const useTasks = () =>
  useQuery({
    queryKey: ["tasks"],
    queryFn: () => all<Task>("/roost/v1/tasks"),
    refetchInterval: (query) => (query.state.data?.some((task) => task.status === "running") ? MOVING : STILL),
  });

export const useTask = (id: string) =>
  useQuery({
    queryKey: ["tasks", id],
    queryFn: () => get<Task>(`/roost/v1/tasks/${id}`),
    refetchInterval: (query) => (query.state.data?.status === "running" ? MOVING : STILL),
  });

export const useTaskRuns = (id: string) =>
  useQuery({
    queryKey: ["tasks", id, "runs"],
    queryFn: async () => (await get<{ data: TaskRun[] }>(`/roost/v1/tasks/${id}/runs`)).data,
    refetchInterval: (query) => (query.state.data?.some((run) => run.ended_at === null) ? MOVING : STILL),
  });

export const useWorkspaces = () =>
  useQuery({ queryKey: ["workspaces"], queryFn: () => all<Workspace>("/roost/v1/workspaces") });

export const useVaults = (archived: boolean, enabled = true) =>
  useQuery({ queryKey: ["vaults", archived], queryFn: () => all<Vault>(`/v1/vaults?include_archived=${archived}`), enabled });

export const useVault = (id: string) =>
  useQuery({ queryKey: ["vaults", id], queryFn: () => get<Vault>(`/v1/vaults/${id}`) });

/** All of them: what was archived stays in sight until it is deleted. */
export const useCredentials = (vault: string) =>
  useQuery({
    queryKey: ["vaults", vault, "credentials"],
    queryFn: () => all<VaultCredential>(`/v1/vaults/${vault}/credentials?include_archived=true`),
  });

export const useDeployments = (archived: boolean) =>
  useQuery({ queryKey: ["deployments", archived], queryFn: () => all<Deployment>(`/v1/deployments?include_archived=${archived}`), refetchInterval: STILL });

export const useDeployment = (id: string) =>
  useQuery({ queryKey: ["deployments", id], queryFn: () => get<Deployment>(`/v1/deployments/${id}`), refetchInterval: IN_SIGHT });

/** The newest, also those that wait and those that were skipped. */
export const useDeploymentRuns = (id: string, state: string | null) =>
  useQuery({
    queryKey: ["deployments", id, "runs", state],
    queryFn: async () => (await get<Page<DeploymentRun>>(`/roost/v1/deployments/${id}/runs?limit=100${state === null ? "" : `&state=${state}`}`)).data,
    refetchInterval: MOVING,
  });

/** The newest sessions that a deployment has made. */
export const useSessionsOf = (deployment: string) =>
  useQuery({
    queryKey: ["deployments", deployment, "sessions"],
    queryFn: async () => (await get<Page<Session>>(`/v1/sessions?deployment_id=${deployment}&include_archived=true&limit=100`)).data,
    refetchInterval: MOVING,
  });

export const useWebhooks = () =>
  useQuery({ queryKey: ["webhooks"], queryFn: async () => (await get<{ data: Webhook[] }>("/roost/v1/webhooks")).data });

export const useWebhook = (id: string) =>
  useQuery({ queryKey: ["webhooks", id], queryFn: () => get<Webhook>(`/roost/v1/webhooks/${id}`), refetchInterval: 5000 });

/** The newest, as they are by now: they are sent while somebody looks. */
export const useDeliveries = (webhook: string, state: string | null) =>
  useQuery({
    queryKey: ["webhooks", webhook, "deliveries", state],
    queryFn: async () => (await get<Page<Delivery>>(`/roost/v1/webhooks/${webhook}/deliveries?limit=100${state === null ? "" : `&state=${state}`}`)).data,
    refetchInterval: 2000,
  });

/** A change of one kind of resource, or, `exact`, of its list alone; a refusal is shown with its hint. */
export function useChange<Given, Answer>(resource: string, change: (given: Given) => Promise<Answer>, exact = false) {
  return useMutation({ ...useAsking(resource, change, exact), onError: complain });
}

/** The same for a form, which says itself what the server has against what is in it. */
export function useSave<Given, Answer>(resource: string, change: (given: Given) => Promise<Answer>) {
  return useMutation(useAsking(resource, change, false));
}

function useAsking<Given, Answer>(resource: string, change: (given: Given) => Promise<Answer>, exact: boolean) {
  const queries = useQueryClient();
  return {
    mutationFn: change,
    gcTime: 0, // what was sent may be a secret: it is not kept once its form is closed
    onSuccess: () => queries.invalidateQueries({ queryKey: [resource], exact }),
  };
}

export function complain(error: unknown): void {
  const known = error instanceof ApiError;
  notifications.show({
    color: "red",
    title: error instanceof Error ? sentence(error.message) : "That did not work.",
    message: (known && error.hint) || "",
    autoClose: 10_000,
  });
}

/** The server's hint names a parameter of its API, which in this app is a box to tick. */
function inUse(error: unknown): never {
  if (!(error instanceof ApiError) || error.status !== 409) throw error;
  throw new ApiError(error.status, error.message, "Archive or delete its sessions first, or tick the box to delete it all the same.", error.code);
}

const pathOf = ({ vault_id, id }: VaultCredential) => `/v1/vaults/${vault_id}/credentials/${id}`;

export const changes = {
  login: (key: string) => post("/auth/login", { api_key: key }),
  logout: () => post("/auth/logout"),
  createSession: (given: Record<string, unknown>) => post<Session>("/v1/sessions", given),
  archiveSession: (id: string) => post<Session>(`/v1/sessions/${id}/archive`),
  renameSession: (given: { id: string; title: string }) =>
    post<Session>(`/v1/sessions/${given.id}`, { title: given.title }),
  forkSession: (given: { id: string; at: string; title: string; files: "copy" | "keep" }) =>
    post<Session>(`/roost/v1/sessions/${given.id}/fork`, { at: given.at, title: given.title, files: given.files }),
  rewindSession: (given: { id: string; to: string; files: boolean }) => post<Session>(`/roost/v1/sessions/${given.id}/rewind`, { to: given.to, files: given.files }),
  createAgent: (given: Record<string, unknown>) => post<Agent>("/v1/agents", given),
  updateAgent: (given: { id: string } & Record<string, unknown>) => {
    const { id, ...body } = given;
    return post<Agent>(`/v1/agents/${id}`, body);
  },
  archiveAgent: (id: string) => post<Agent>(`/v1/agents/${id}/archive`),
  createEnvironment: (given: Record<string, unknown>) => post<Environment>("/v1/environments", given),
  updateEnvironment: (given: { id: string } & Record<string, unknown>) => {
    const { id, ...body } = given;
    return post<Environment>(`/v1/environments/${id}`, body);
  },
  archiveEnvironment: (id: string) => post<Environment>(`/v1/environments/${id}/archive`),
  createEnvironmentKey: ({ environment, name }: { environment: string; name: string }) => post<EnvironmentKey>(`/roost/v1/environments/${environment}/keys`, { name }),
  revokeEnvironmentKey: ({ environment, id }: { environment: string; id: string }) => remove(`/roost/v1/environments/${environment}/keys/${id}`),
  createTask: (given: Record<string, unknown>) => post<Task>("/roost/v1/tasks", given),
  updateTask: (given: { id: string } & Record<string, unknown>) => {
    const { id, ...body } = given;
    return post<Task>(`/roost/v1/tasks/${id}`, body);
  },
  pauseTask: (id: string) => post<Task>(`/roost/v1/tasks/${id}/pause`, {}),
  unpauseTask: (id: string) => post<Task>(`/roost/v1/tasks/${id}/unpause`, {}),
  deleteTask: (id: string) => remove(`/roost/v1/tasks/${id}`),
  runTask: (given: { id: string } & Record<string, unknown>) => {
    const { id, ...body } = given;
    return post<TaskRun>(`/roost/v1/tasks/${id}/runs`, body);
  },
  createWorkspace: (given: Record<string, unknown>) => post<Workspace>("/roost/v1/workspaces", given),
  updateWorkspace: (given: { id: string } & Record<string, unknown>) => {
    const { id, ...body } = given;
    return post<Workspace>(`/roost/v1/workspaces/${id}`, body);
  },
  deleteWorkspace: (given: { id: string; force: boolean }) => remove(`/roost/v1/workspaces/${given.id}?force=${given.force}`).catch(inUse),
  shareWorkspace: (given: { id: string } & Record<string, unknown>) => {
    const { id, ...body } = given;
    return post<Workspace>(`/roost/v1/workspaces/${id}/permissions`, body);
  },
  createVault: (given: Record<string, unknown>) => post<Vault>("/v1/vaults", given),
  updateVault: ({ id, ...given }: { id: string } & Record<string, unknown>) => post<Vault>(`/v1/vaults/${id}`, given),
  archiveVault: (id: string) => post<Vault>(`/v1/vaults/${id}/archive`),
  deleteVault: (id: string) => remove(`/v1/vaults/${id}`),
  createCredential: ({ vault, ...given }: { vault: string } & Record<string, unknown>) => post<VaultCredential>(`/v1/vaults/${vault}/credentials`, given),
  updateCredential: ({ of, ...given }: { of: VaultCredential } & Record<string, unknown>) => post<VaultCredential>(pathOf(of), given),
  validateCredential: (of: VaultCredential) => post<CredentialValidation>(`${pathOf(of)}/mcp_oauth_validate`),
  archiveCredential: (of: VaultCredential) => post<VaultCredential>(`${pathOf(of)}/archive`),
  deleteCredential: (of: VaultCredential) => remove(pathOf(of)),
  createDeployment: (given: Record<string, unknown>) => post<Deployment>("/v1/deployments", given),
  changeDeployment: ({ id, ...given }: { id: string } & Record<string, unknown>) => post<Deployment>(`/v1/deployments/${id}`, given),
  runDeployment: (id: string) => post<DeploymentRun>(`/v1/deployments/${id}/run`),
  pauseDeployment: (id: string) => post<Deployment>(`/v1/deployments/${id}/pause`),
  unpauseDeployment: (id: string) => post<Deployment>(`/v1/deployments/${id}/unpause`),
  archiveDeployment: (id: string) => post<Deployment>(`/v1/deployments/${id}/archive`),
  createWebhook: (given: Record<string, unknown>) => post<Webhook>("/roost/v1/webhooks", given),
  changeWebhook: ({ id, ...given }: { id: string } & Record<string, unknown>) => post<Webhook>(`/roost/v1/webhooks/${id}`, given),
  rotateWebhook: (id: string) => post<Webhook>(`/roost/v1/webhooks/${id}/regenerate_signing_secret`),
  replayWebhook: (id: string) => post<{ replayed: number }>(`/roost/v1/webhooks/${id}/replay`),
  replayDelivery: (of: Delivery) => post<Delivery>(`/roost/v1/webhooks/${of.webhook_id}/deliveries/${of.id}/replay`),
  deleteWebhook: (id: string) => remove(`/roost/v1/webhooks/${id}`),
  createKey: (given: Record<string, unknown>) => post<Key>("/roost/v1/keys", given),
  changeKey: ({ id, ...given }: { id: string } & Record<string, unknown>) => post<Key>(`/roost/v1/keys/${id}`, given),
  revokeKey: (id: string) => remove(`/roost/v1/keys/${id}`),
};
