import { Center, Loader } from "@mantine/core";
import { lazy, Suspense } from "react";
import { createBrowserRouter, Outlet } from "react-router";
import { RouterProvider } from "react-router/dom";

import { useMe } from "./api/hooks";
import { LoginPage } from "./pages/login";
import { NotFoundPage } from "./pages/not-found";
import { SessionsPage } from "./pages/sessions";
import { Frame } from "./parts/frame";

// What is seen first comes with the app; each other page when somebody goes there.
const SessionPage = lazy(() => import("./pages/session").then(({ SessionPage }) => ({ default: SessionPage })));
const TasksPage = lazy(() => import("./pages/tasks").then(({ TasksPage }) => ({ default: TasksPage })));
const TaskPage = lazy(() => import("./pages/task").then(({ TaskPage }) => ({ default: TaskPage })));
const WorkspacesPage = lazy(() => import("./pages/workspaces").then(({ WorkspacesPage }) => ({ default: WorkspacesPage })));
const AgentsPage = lazy(() => import("./pages/agents").then(({ AgentsPage }) => ({ default: AgentsPage })));
const EnvironmentsPage = lazy(() => import("./pages/environments").then(({ EnvironmentsPage }) => ({ default: EnvironmentsPage })));
const EnvironmentPage = lazy(() => import("./pages/environment").then(({ EnvironmentPage }) => ({ default: EnvironmentPage })));
const VaultsPage = lazy(() => import("./pages/vaults").then(({ VaultsPage }) => ({ default: VaultsPage })));
const VaultPage = lazy(() => import("./pages/vault").then(({ VaultPage }) => ({ default: VaultPage })));
const DeploymentsPage = lazy(() => import("./pages/deployments").then(({ DeploymentsPage }) => ({ default: DeploymentsPage })));
const DeploymentPage = lazy(() => import("./pages/deployment").then(({ DeploymentPage }) => ({ default: DeploymentPage })));
const WebhooksPage = lazy(() => import("./pages/webhooks").then(({ WebhooksPage }) => ({ default: WebhooksPage })));
const WebhookPage = lazy(() => import("./pages/webhook").then(({ WebhookPage }) => ({ default: WebhookPage })));
const KeysPage = lazy(() => import("./pages/keys").then(({ KeysPage }) => ({ default: KeysPage })));

const COMING = (
  <Center h="50vh">
    <Loader role="status" aria-label="Loading" />
  </Center>
);

function SignedIn() {
  const me = useMe();
  if (me.isPending) return COMING;
  if (me.data === undefined) return <LoginPage />;
  return (
    <Frame me={me.data}>
      <Suspense fallback={COMING}>
        <Outlet />
      </Suspense>
    </Frame>
  );
}

const router = createBrowserRouter([
  {
    element: <SignedIn />,
    children: [
      { path: "/", element: <SessionsPage /> },
      { path: "/sessions/:id", element: <SessionPage /> },
      { path: "/sessions/:id/:view", element: <SessionPage /> },
      { path: "/tasks", element: <TasksPage /> },
      { path: "/tasks/:id", element: <TaskPage /> },
      { path: "/workspaces", element: <WorkspacesPage /> },
      { path: "/agents", element: <AgentsPage /> },
      { path: "/environments", element: <EnvironmentsPage /> },
      { path: "/environments/:id", element: <EnvironmentPage /> },
      { path: "/vaults", element: <VaultsPage /> },
      { path: "/vaults/:id", element: <VaultPage /> },
      { path: "/deployments", element: <DeploymentsPage /> },
      { path: "/deployments/:id", element: <DeploymentPage /> },
      { path: "/webhooks", element: <WebhooksPage /> },
      { path: "/webhooks/:id", element: <WebhookPage /> },
      { path: "/keys", element: <KeysPage /> },
      { path: "*", element: <NotFoundPage /> },
    ],
  },
]);

export function App() {
  return <RouterProvider router={router} />;
}
