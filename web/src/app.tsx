import { Center, Loader } from "@mantine/core";
import { createBrowserRouter, Navigate, Outlet } from "react-router";
import { RouterProvider } from "react-router/dom";

import { useMe } from "./api/hooks";
import { AgentsPage } from "./pages/agents";
import { EnvironmentsPage } from "./pages/environments";
import { KeysPage } from "./pages/keys";
import { LoginPage } from "./pages/login";
import { SessionPage } from "./pages/session";
import { SessionsPage } from "./pages/sessions";
import { TaskPage } from "./pages/task";
import { TasksPage } from "./pages/tasks";
import { WorkspacesPage } from "./pages/workspaces";
import { Frame } from "./parts/frame";

function SignedIn() {
  const me = useMe();
  if (me.isPending) {
    return (
      <Center h="100vh">
        <Loader aria-label="Loading" />
      </Center>
    );
  }
  if (me.data === undefined) return <LoginPage />;
  return (
    <Frame me={me.data}>
      <Outlet />
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
      { path: "/keys", element: <KeysPage /> },
      { path: "*", element: <Navigate to="/" replace /> },
    ],
  },
]);

export function App() {
  return <RouterProvider router={router} />;
}
