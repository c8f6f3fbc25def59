import { Badge, type MantineColor } from "@mantine/core";
import { CircleCheck, CircleDot, CirclePause, CircleSlash, CircleUser, CircleX, RefreshCw, type LucideIcon } from "lucide-react";

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
  terminated: { word: "Ended", colour: "dark", icon: CircleSlash },
};

/** How a session, a task or a run stands. */
export function StatusBadge({ status }: { status: string }) {
  const { word, colour, icon: Icon } = LOOKS[status] ?? LOOKS.idle!;
  return (
    <Badge color={colour} variant="light" tt="none" leftSection={<Icon size={13} aria-hidden />} className="status">
      {word}
    </Badge>
  );
}
