/**
 * Which part of a log is the conversation. A rewind takes nothing out of a log: it is an entry that says
 * where the conversation goes on from, so a log is a tree whose branches lie one after the other:
 *
 *     1 ── 2 ── 3 ── 4
 *          └─────────── 5 ── 6     a rewind at 5, to 2: the conversation is 1, 2, 5, 6
 */

import type { LogEvent } from "./events";

export const REWOUND = "roost.rewound";

/** The events of the conversation that the newest one belongs to, rewinds included. */
export function branchOf(events: LogEvent[]): LogEvent[] {
  const rewinds = events.filter((event) => event.type === REWOUND && event.to !== undefined);
  if (rewinds.length === 0) return events;
  const parts: [number, number][] = [];
  let head = events.at(-1)?.seq ?? 0;
  for (const rewind of rewinds.reverse()) {
    if (rewind.seq > head) continue;
    parts.push([rewind.seq, head]);
    head = rewind.to!.seq;
  }
  parts.push([1, head]);
  return events.filter(({ seq }) => parts.some(([first, last]) => first <= seq && seq <= last));
}
