import { Badge, Tooltip, type MantineColor } from "@mantine/core";
import { FolderLock, ShieldCheck, TriangleAlert, type LucideIcon } from "lucide-react";

import type { Trust } from "../api/types";

export const TRUST: Record<Trust, { word: string; colour: MantineColor; icon: LucideIcon; means: string }> = {
  sandboxed: {
    word: "Sandboxed",
    colour: "teal.9",
    icon: ShieldCheck,
    means: "The agent lives in a sandbox and sees nothing but its own workspace.",
  },
  vault: {
    word: "Vault",
    colour: "yellow.5",
    icon: FolderLock,
    means: "The agent runs on the host; its tools are confined to the vault directory.",
  },
  full: {
    word: "Full access",
    colour: "red.8",
    icon: TriangleAlert,
    means: "The agent runs on the host with no confinement at all.",
  },
};

/** Colour, icon and word: nobody has to guess what an agent may do. */
export function TrustBadge({ trust }: { trust: Trust }) {
  const { word, colour, icon: Icon, means } = TRUST[trust] ?? TRUST.full;
  return (
    <Tooltip label={means} events={{ hover: true, focus: true, touch: true }} multiline maw={280}>
      <Badge color={colour} variant="filled" leftSection={<Icon size={13} aria-hidden />} tt="none" style={{ flexShrink: 0 }}>
        {word}
      </Badge>
    </Tooltip>
  );
}
