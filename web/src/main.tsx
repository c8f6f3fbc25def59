import "@mantine/core/styles.css";
import "@mantine/notifications/styles.css";
import "./style.css";

import { createTheme, MantineProvider, Modal, Notification } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { ApiError } from "./api/http";
import { App } from "./app";

const theme = createTheme({
  primaryColor: "cyan",
  primaryShade: 9,
  fontFamily: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
  defaultRadius: "md",
  autoContrast: true,
  components: {
    Modal: Modal.extend({ defaultProps: { closeButtonProps: { "aria-label": "Close" } } }),
    Notification: Notification.extend({ defaultProps: { closeButtonProps: { "aria-label": "Close" } } }),
  },
});

const queries = new QueryClient({
  queryCache: new QueryCache({
    onError: (error, query) => {
      // The login is over: ask who this is, once. Without an answer, the login page asks for nothing else.
      if (error instanceof ApiError && error.status === 401 && query.queryKey[0] !== "me") void queries.resetQueries({ queryKey: ["me"] });
    },
  }),
  defaultOptions: {
    queries: {
      staleTime: 2000,
      // What was refused stays refused; what could not be reached is tried again.
      retry: (count, error) => !(error instanceof ApiError && error.status > 0) && count < 3,
    },
  },
});

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <MantineProvider theme={theme} defaultColorScheme="auto">
      <Notifications position="bottom-right" />
      <QueryClientProvider client={queries}>
        <App />
      </QueryClientProvider>
    </MantineProvider>
  </StrictMode>,
);
