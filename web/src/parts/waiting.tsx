/** Says that sessions wait for somebody, wherever in the app that somebody is. */

import { Anchor } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useEffect, useRef } from "react";
import { useLocation, useNavigate } from "react-router";

import { useSessions } from "../api/hooks";
import type { Session } from "../api/types";
import { nameOf, waits } from "./words";

/** How many sessions wait. The tab's title says so, and a notification for each that begins to. */
export function useWaiting(): number {
  const sessions = useSessions(false).data;
  const { pathname } = useLocation();
  const navigate = useNavigate();
  const before = useRef<Set<string>>(undefined);
  const waiting = sessions?.filter(waits) ?? [];

  useEffect(() => {
    document.title = titleOf(waiting, sessions?.find(({ id }) => pathname.startsWith(`/sessions/${id}`)));
  });

  useEffect(() => {
    if (sessions === undefined) return;
    const now = new Set(sessions.filter(waits).map(({ id }) => id));
    const known = before.current;
    before.current = now;
    for (const id of known ?? []) if (!now.has(id) || pathname.startsWith(`/sessions/${id}`)) notifications.hide(id);
    for (const session of sessions) {
      if (known === undefined || known.has(session.id) || !now.has(session.id) || pathname.startsWith(`/sessions/${session.id}`)) continue;
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
  }, [sessions, pathname, navigate]);

  return waiting.length;
}

export function titleOf(waiting: Session[], open: Session | undefined): string {
  const here = open === undefined ? "Roost" : `${nameOf(open)} · Roost`;
  if (waiting.length === 0) return here;
  return waiting.length === 1 ? `(1) ${nameOf(waiting[0]!)} waits · Roost` : `(${waiting.length}) sessions wait · Roost`;
}
