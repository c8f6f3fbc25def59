import { ActionIcon, Anchor, AppShell, Badge, Burger, Button, Group, NavLink, Stack, Text, Tooltip, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useQueryClient } from "@tanstack/react-query";
import { Bot, Boxes, CalendarClock, FolderGit2, KeyRound, ListChecks, LogOut, MessagesSquare, Moon, Sun, Vault, Webhook } from "lucide-react";
import type { ReactNode } from "react";
import { Link, useLocation } from "react-router";

import { changes } from "../api/hooks";
import type { Me } from "../api/types";
import { useWaiting } from "./waiting";

const PLACES = [
  { to: "/", label: "Sessions", icon: MessagesSquare },
  { to: "/tasks", label: "Tasks", icon: ListChecks },
  { to: "/deployments", label: "Deployments", icon: CalendarClock },
  { to: "/workspaces", label: "Workspaces", icon: FolderGit2 },
  { to: "/agents", label: "Agents", icon: Bot },
  { to: "/environments", label: "Environments", icon: Boxes },
  { to: "/vaults", label: "Vaults", icon: Vault },
  { to: "/webhooks", label: "Webhooks", icon: Webhook, admin: true },
  { to: "/keys", label: "API keys", icon: KeyRound, admin: true },
];

export function Frame({ me, children }: { me: Me; children: ReactNode }) {
  const [opened, { toggle, close }] = useDisclosure();
  const { pathname } = useLocation();
  const waiting = useWaiting();
  const places = PLACES.filter((place) => !place.admin || me.role === "admin");
  const here = (to: string) => (to === "/" ? pathname === "/" || pathname.startsWith("/sessions") : pathname.startsWith(to));
  return (
    <AppShell
      header={{ height: 48 }}
      navbar={{ width: 200, breakpoint: "sm", collapsed: { mobile: !opened } }}
      padding={0}
    >
      <a className="skip" href="#main">
        Skip to content
      </a>
      <AppShell.Header px="sm">
        <Group h="100%" justify="space-between" wrap="nowrap">
          <Group gap="xs" wrap="nowrap">
            <Burger opened={opened} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Menu" />
            <Anchor component={Link} to="/" underline="never" c="inherit" fw={700}>
              <Group gap={8}>
                <img src="/icon.svg" width={22} height={22} alt="" />
                Roost
              </Group>
            </Anchor>
          </Group>
          <Group gap="xs" wrap="nowrap">
            <Text size="sm" c="dimmed" visibleFrom="sm">
              {me.name}
            </Text>
            <SchemeSwitch />
            <Leave />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar p="xs" component="nav" aria-label="Main">
        <Stack gap={4}>
          {places.map(({ to, label, icon: Icon }) => (
            <NavLink key={to} component={Link} to={to} label={label} leftSection={<Icon size={18} aria-hidden />} rightSection={to === "/" && waiting !== "0" && <Badge size="sm" variant="light" color="grape" title={`${waiting} waiting`}>{waiting}</Badge>} active={here(to)} aria-current={here(to) ? "page" : undefined} onClick={close} className="rounded" />
          ))}
        </Stack>
      </AppShell.Navbar>
      <AppShell.Main id="main" tabIndex={-1}>
        {children}
      </AppShell.Main>
    </AppShell>
  );
}

function SchemeSwitch() {
  const { setColorScheme } = useMantineColorScheme();
  const scheme = useComputedColorScheme("light");
  const other = scheme === "dark" ? "light" : "dark";
  return (
    <Tooltip label={`Use ${other} colours`}>
      <ActionIcon variant="default" onClick={() => setColorScheme(other)} aria-label={`Use ${other} colours`}>
        {scheme === "dark" ? <Sun size={16} aria-hidden /> : <Moon size={16} aria-hidden />}
      </ActionIcon>
    </Tooltip>
  );
}

function Leave() {
  const queries = useQueryClient();
  const leave = async () => {
    await changes.logout();
    queries.clear();
    window.location.assign("/");
  };
  return (
    <Button variant="default" size="xs" leftSection={<LogOut size={14} aria-hidden />} onClick={leave}>
      Log out
    </Button>
  );
}
