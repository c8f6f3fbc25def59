import { Badge, type MantineColor } from "@mantine/core";
import { CalendarClock, CircleCheck, CircleDot, CirclePause, CircleSlash, CircleUser, CircleX, Hourglass, RefreshCw, type LucideIcon } from "lucide-react";

const LOOKS: Record<string, { word: string; colour: MantineColor; icon: LucideIcon }> = {
  running: { word: "Working", colour: "blue", icon: CircleDot },
  rescheduling: { word: "Trying again", colour: "orange", icon: RefreshCw },
  waiting: { word: "Waits for you", colour: "grape", icon: CircleUser },
  idle: { word: "Idle", colour: "gray", icon: CirclePause },
  starting: { word: "Starting", colour: "blue", icon: CircleDot },
  open: { word: "Open", colour: "gray", icon: CirclePause },
  done: { word: "Done", colour: "teal", icon: CircleCheck },
  succeeded: { word: "Succeeded", colour: "teal", icon: CircleCheck },
  failed: { word: "Failed", colour: "red", icon: CircleX },
  cancelled: { word: "Stopped", colour: "orange", icon: CircleSlash },
  planned: { word: "Planned", colour: "blue", icon: CalendarClock },
  queued: { word: "Waits for the last run", colour: "blue", icon: Hourglass },
  started: { word: "Started", colour: "teal", icon: CircleCheck },
  skipped: { word: "Skipped", colour: "gray", icon: CircleSlash },
  archived: { word: "Archived", colour: "dark", icon: CircleSlash },
  active: { word: "Active", colour: "teal", icon: CircleCheck },
  paused: { word: "Paused", colour: "yellow", icon: CirclePause },
  terminated: { word: "Ended", colour: "dark", icon: CircleSlash },
};

/** How a session, a task, a deployment or a run stands. */
export function StatusBadge({ status }: { status: string }) {
  const { word, colour, icon: Icon } = LOOKS[status] ?? LOOKS.idle!;
  return (
    <Badge color={colour} variant="light" tt="none" leftSection={<Icon size={13} aria-hidden />} className="status">
      {word}
    </Badge>
  );
}
