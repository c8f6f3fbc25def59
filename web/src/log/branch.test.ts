import { expect, it } from "vitest";

import { branchOf } from "./branch";
import { after, EMPTY } from "./conversation";
import type { LogEvent } from "./events";

const said = (seq: number): LogEvent => ({ id: `e${seq}`, type: "user.message", seq, processed_at: "2026-01-01T00:00:00Z", content: [{ type: "text", text: `${seq}` }] });
const rewound = (seq: number, to: number): LogEvent => ({ id: `e${seq}`, type: "roost.rewound", seq, processed_at: "2026-01-01T00:00:00Z", to: { seq: to, event_id: `e${to}`, turn: 1 }, files: true });
const seqs = (events: LogEvent[]) => branchOf(events).map(({ seq }) => seq);

it("is the branch that the log's end is on, however often it was rewound", () => {
  const log = [1, 2, 3, 4].map(said);
  expect(seqs(log)).toEqual([1, 2, 3, 4]);
  const once = [...log, rewound(5, 2), said(6)];
  expect(seqs(once)).toEqual([1, 2, 5, 6]);
  const twice = [...once, rewound(7, 1), said(8)];
  expect(seqs(twice)).toEqual([1, 7, 8]);
  const back = [...once, rewound(7, 4), said(8)]; // to what the first one had left behind
  expect(seqs(back)).toEqual([1, 2, 3, 4, 7, 8]);
  expect(after(EMPTY, branchOf(once)).items.map((item) => ("text" in item ? item.text : item.kind))).toEqual([
    "1",
    "2",
    "The session went back to the end of turn 1, and its files with it.",
    "6",
  ]);
});
