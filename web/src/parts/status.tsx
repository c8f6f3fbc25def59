import { Badge, type MantineColor } from "@mantine/core";
import { CircleDot, CirclePause, CircleSlash, CircleUser, RefreshCw, type LucideIcon } from "lucide-react";

const LOOKS: Record<string, { word: string; colour: MantineColor; icon: LucideIcon }> = {
  running: { word: "Working", colour: "blue", icon: CircleDot },
  rescheduling: { word: "Trying again", colour: "orange", icon: RefreshCw },
  waiting: { word: "Waits for you", colour: "grape", icon: CircleUser },
  idle: { word: "Idle", colour: "gray", icon: CirclePause },
  terminated: { word: "Ended", colour: "dark", icon: CircleSlash },
};

export function StatusBadge({ status }: { status: string }) {
  const { word, colour, icon: Icon } = LOOKS[status] ?? LOOKS.idle!;
  return (
    <Badge color={colour} variant="light" tt="none" leftSection={<Icon size={13} aria-hidden />} className="status">
      {word}
    </Badge>
  );
}
