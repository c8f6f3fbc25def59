-- How many bytes of the blob store a workspace's snapshots take, and whose they are: '' until that is noted.
ALTER TABLE workspaces ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workspaces ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX workspaces_by_tenant ON workspaces (tenant, bytes) WHERE bytes > 0;
