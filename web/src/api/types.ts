/** What the server shows of its resources, as far as the app looks at it. */

import type { SessionUsage } from "../log/events";

export type Trust = "sandboxed" | "vault" | "full";

export interface Page<T> {
  data: T[];
  next_page: string | null;
}

export interface Agent {
  id: string;
  name: string;
  description: string | null;
  version: number;
  model: { id: string };
  system: string | null;
  tools: Toolset[];
  archived_at: string | null;
  created_at: string;
}

export interface Toolset {
  type: string;
  default_config?: { enabled: boolean; permission_policy: { type: string } };
  configs?: { name: string; enabled: boolean; permission_policy: { type: string } }[];
  [more: string]: unknown;
}

export interface Environment {
  id: string;
  name: string;
  description: string | null;
  config: {
    type: string;
    networking?: { type: string; allowed_hosts?: string[] };
  };
  archived_at: string | null;
  created_at: string;
}

export interface EnvironmentKey {
  id: string;
  name: string;
  created_at: string;
  secret?: string;
}

export interface Session {
  id: string;
  title: string | null;
  status: "idle" | "running" | "rescheduling" | "terminated";
  agent: { id: string; name: string; model: { id: string } };
  environment_id: string;
  created_at: string;
  updated_at: string;
  archived_at: string | null;
  usage: SessionUsage;
  stats: { active_seconds: number; duration_seconds: number };
  trust_level: Trust;
  workspace: string | null;
  mount_scope: string;
  harness: string;
  task_id: string | null;
  waiting_for: string[];
  vault_ids: string[];
}

/** A kind of agent that sessions can have, or why they cannot. */
export interface Harness {
  name: string;
  default: boolean;
  available: boolean;
  version: string | null;
  unavailable: { message: string; hint: string | null } | null;
  /** What its agents can do; nobody knows it of one that cannot even be loaded. */
  abilities: Record<string, boolean> | null;
}

export interface Task extends Planned {
  id: string;
  title: string;
  description: string;
  details: string;
  status: "open" | "running" | "done" | "failed";
  outcome: string | null;
  agent: string | null;
  environment_id: string | null;
  created_at: string;
  updated_at: string;
}

export interface TaskRun {
  id: string;
  task_id: string;
  session_id: string | null;
  status: "starting" | "running" | "waiting" | "succeeded" | "failed" | "cancelled" | "queued" | "skipped";
  outcome: string | null;
  error: string | null;
  scheduled_at: string | null;
  skipped: Skipped | null;
  created_at: string;
  ended_at: string | null;
}

/** Something in a session's directory. What has a name that is no text cannot be asked for. */
export interface Entry {
  name: string;
  path: string | null;
  kind: "directory" | "file" | "symlink" | "other";
  size_bytes: number;
  modified_at: string;
}

export type Access = "read" | "write" | "admin";

export interface WorkspaceSettings {
  quota_bytes: number | null;
  keep_snapshots: number;
  keep_days: number | null;
  mount_scope: string | null;
  trust_levels: Trust[];
  writers: "allowed" | "serialised";
}

export interface Workspace {
  id: string;
  name: string;
  description: string;
  settings: WorkspaceSettings;
  permissions: ({ type: "everyone"; access: Access } | { type: "key"; key_id: string; access: Access })[];
  created_at: string;
}

export interface Vault {
  id: string;
  display_name: string;
  metadata: Record<string, string>;
  created_at: string;
  archived_at: string | null;
}

/** What is shown of a credential; its secret is not. */
export type CredentialAuth =
  | { type: "static_bearer"; mcp_server_url: string }
  | { type: "mcp_oauth"; mcp_server_url: string; expires_at: string | null; refresh: { token_endpoint: string; client_id: string; scope: string | null; token_endpoint_auth: { type: string } } | null }
  | {
      type: "environment_variable";
      secret_name: string;
      networking: { type: "limited" | "unrestricted"; allowed_hosts?: string[] };
      injection_location: { header: boolean; body: boolean };
    };

export interface VaultCredential {
  id: string;
  vault_id: string;
  display_name: string | null;
  auth: CredentialAuth;
  metadata: Record<string, string>;
  created_at: string;
  updated_at: string;
  archived_at: string | null;
}

export interface HttpAnswer {
  status_code: number;
  body: string;
}

/** What came of trying an OAuth token at its server. */
export interface CredentialValidation {
  status: "valid" | "invalid" | "unknown";
  mcp_probe: { http_response: HttpAnswer | null } | null;
  refresh: { status: "succeeded" | "failed" | "connect_error" | "no_refresh_token"; http_response: HttpAnswer | null } | null;
  validated_at: string;
}

export interface Key {
  id: string;
  name: string;
  tenant: string;
  role: "user" | "admin";
  trust_ceiling: Trust;
  sees: "own" | "tenant";
  hint: string;
  created_at: string;
  revoked_at: string | null;
  secret?: string;
}

export interface Webhook {
  id: string;
  url: string;
  name: string;
  description: string;
  enabled_events: string[];
  state: "enabled" | "disabled";
  disabled_reason: string;
  failing_since: string | null;
  created_at: string;
  signing_secret?: string;
}

export type DeliveryState = "pending" | "delivered" | "failed" | "held";

export interface Delivery {
  id: string;
  webhook_id: string;
  event_type: string;
  subject_id: string;
  state: DeliveryState;
  attempts: number;
  next_attempt_at: string | null;
  status: number | null;
  error: string | null;
  answer: string;
  created_at: string;
}

export type MissedPolicy = "skip" | "latest" | "all";
export type OverlapPolicy = "allow" | "skip" | "queue" | "replace";

export interface CronSchedule {
  expression: string;
  timezone: string;
  last_run_at: string | null;
  upcoming_runs_at: string[];
}

/** What all have that can have a schedule. */
export interface Planned {
  schedule: CronSchedule | null;
  missed_runs: { policy: MissedPolicy; window_seconds: number };
  overlap: OverlapPolicy;
  paused_reason: { type: "manual" } | { type: "error"; error: { type: string } } | null;
}

/** Why nothing ran, and how many times that stands for, from when on. */
export interface Skipped {
  reason: string;
  count: number;
  since: string | null;
}

/** What a session begins with. */
export interface InitialEvent {
  type: string;
  content?: { type: string; text?: string }[];
}

export interface Deployment extends Planned {
  id: string;
  name: string;
  description: string | null;
  agent: { id: string; version: number };
  environment_id: string;
  initial_events: InitialEvent[];
  vault_ids: string[];
  status: "active" | "paused";
  trust_level: Trust | null;
  workspace: string | null;
  mount_scope: string | null;
  harness: string | null;
  created_at: string;
  archived_at: string | null;
}

export interface DeploymentRun {
  id: string;
  trigger_context: { type: "manual" } | { type: "schedule"; scheduled_at: string };
  state: "open" | "queued" | "started" | "failed" | "skipped";
  session_id: string | null;
  error: { type: string; message: string } | null;
  skipped: Skipped | null;
  created_at: string;
}

export interface Me {
  key_id: string;
  name: string;
  tenant: string;
  role: "user" | "admin";
  trust_ceiling: Trust;
  /** Those that this key may ask for and this server offers. */
  trust_levels: Trust[];
}
