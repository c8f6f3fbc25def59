import { Anchor, Stack, Text } from "@mantine/core";
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link } from "react-router";

import { isGone } from "../api/http";
import { Loaded, Page } from "./page";

interface Shown {
  title: string;
  about: ReactNode;
  actions: ReactNode;
  children: ReactNode;
}

/** The page of one thing: what is known of it, the way to `all` of its kind, and what belongs to it; `gone` if there is no such thing. */
export function ThingPage<T>({ query, all, gone, show }: { query: UseQueryResult<T>; all: { to: string; label: string }; gone: ReactNode; show: (thing: T) => Shown }) {
  if (isGone(query.error)) return gone;
  return (
    <Loaded query={query}>
      {(found) => {
        const { title, about, actions, children } = show(found);
        return (
          <Page title={title} actions={actions}>
            <Stack>
              <Text size="sm" c="dimmed" component="div">
                {about}
                <Anchor component={Link} to={all.to} underline="always">
                  {all.label}
                </Anchor>
              </Text>
              {children}
            </Stack>
          </Page>
        );
      }}
    </Loaded>
  );
}
