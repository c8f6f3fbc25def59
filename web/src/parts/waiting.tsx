/** Says that sessions wait for somebody, wherever in the app that somebody is. */

import { Anchor } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useEffect, useRef } from "react";
import { useLocation, useNavigate } from "react-router";

import { useSession, useWaitingSessions } from "../api/hooks";
import type { Session } from "../api/types";
import { nameOf } from "./words";

/** How many sessions wait. The tab's title says so, and a notification for each that begins to. */
export function useWaiting(): string {
  const found = useWaitingSessions().data;
  const waiting = found?.data;
  const count = `${waiting?.length ?? 0}${found?.next_page ? "+" : ""}`;
  const { pathname } = useLocation();
  const here = /^\/sessions\/([^/]+)/.exec(pathname)?.[1];
  const open = useSession(here ?? "", here !== undefined).data;
  const navigate = useNavigate();
  const before = useRef<Set<string>>(undefined);

  useEffect(() => {
    document.title = titleOf(waiting ?? [], count, open);
  });

  useEffect(() => {
    if (waiting === undefined) return;
    const now = new Set(waiting.map(({ id }) => id));
    const known = before.current;
    before.current = now;
    for (const id of known ?? []) if (!now.has(id) || id === here) notifications.hide(id);
    for (const session of waiting) {
      if (known === undefined || known.has(session.id) || session.id === here) continue;
      notifications.show({
        id: session.id,
        color: "grape",
        autoClose: false,
        title: `${nameOf(session)} waits for you`,
        message: (
          <Anchor size="sm" href={`/sessions/${session.id}`} onClick={(event) => (event.preventDefault(), navigate(`/sessions/${session.id}`))}>
            Answer it
          </Anchor>
        ),
      });
    }
  }, [waiting, here, navigate]);

  return count;
}

export function titleOf(waiting: Session[], count: string, open: Session | undefined): string {
  const here = open === undefined ? "Roost" : `${nameOf(open)} · Roost`;
  if (waiting.length === 0) return here;
  return waiting.length === 1 ? `(1) ${nameOf(waiting[0]!)} waits · Roost` : `(${count}) sessions wait · Roost`;
}
