/** Where a message is written: text and pictures, kept until they are sent. */

import type { ContentBlock } from "@roost/client";
import { ActionIcon, CloseButton, FileButton, Group, Loader, Text, Textarea } from "@mantine/core";
import { useMediaQuery } from "@mantine/hooks";
import { CircleStop, ImagePlus, SendHorizontal } from "lucide-react";
import { useEffect, useState, type ClipboardEvent, type KeyboardEvent } from "react";

import { complain } from "../api/hooks";
import { dropPicture, keepPicture, type Kept } from "../api/pictures";
import type { LiveSession } from "../live/session";
import { KeptPicture } from "./picture";

export type Stands = "rests" | "works" | "waits" | "ended";

const PLACEHOLDERS: Record<Stands, string> = {
  rests: "Message",
  works: "Queue a message",
  waits: "Queue a message",
  ended: "This session has ended",
};

export function Composer({ live, state, writing, onSent }: { live: LiveSession; state: Stands; writing: Writing; onSent: () => void }) {
  const { draft, change, attach, busy } = writing;
  const touch = useMediaQuery("(pointer: coarse)", false, { getInitialValueInEffect: false });
  const open = state === "works" || state === "waits";
  const ended = state === "ended";
  const empty = draft.text.trim() === "" && draft.pictures.length === 0;
  const send = () => {
    if (empty || busy) return;
    live.say(contentOf(draft));
    change(NOTHING);
    onSent();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    // The keyboard of a phone has no Shift+Enter: there, the button sends.
    if (touch && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    send();
  };
  const onPaste = (event: ClipboardEvent) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  };
  return (
    <div className="composer">
      <Pictures pictures={draft.pictures} busy={busy} remove={(gone) => change({ ...draft, pictures: draft.pictures.filter((one) => one !== gone) })} />
      <Group gap="xs" align="flex-end" wrap="nowrap">
        <FileButton onChange={attach} accept="image/*" multiple disabled={ended}>
          {(props) => (
            <ActionIcon {...props} size={42} variant="default" aria-label="Attach pictures" disabled={ended}>
              <ImagePlus size={18} aria-hidden />
            </ActionIcon>
          )}
        </FileButton>
        <Textarea
          flex={1}
          autosize
          minRows={1}
          maxRows={10}
          autoFocus={!touch}
          aria-label="Message"
          placeholder={PLACEHOLDERS[state]}
          disabled={ended}
          value={draft.text}
          onChange={(event) => change({ ...draft, text: event.currentTarget.value })}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
        {open && (
          <ActionIcon size={42} variant="default" aria-label="Interrupt" onClick={live.interrupt}>
            <CircleStop size={18} aria-hidden />
          </ActionIcon>
        )}
        <ActionIcon size={42} aria-label="Send" onClick={send} disabled={ended || empty || busy}>
          <SendHorizontal size={18} aria-hidden />
        </ActionIcon>
      </Group>
      {!touch && !ended && (
        <Text size="xs" c="dimmed" mt={4} visibleFrom="sm">
          {state === "waits" ? "The agent waits for your answer above; a message is read after it. Esc interrupts." : `Enter sends, Shift+Enter breaks the line${open ? ", Esc interrupts" : ""}.`}
        </Text>
      )}
    </div>
  );
}

function Pictures({ pictures, busy, remove }: { pictures: Kept[]; busy: boolean; remove: (gone: Kept) => void }) {
  if (pictures.length === 0 && !busy) return null;
  return (
    <Group gap="xs" mb="xs" component="ul" aria-label="Pictures to send" className="to-send">
      {pictures.map((kept) => (
        <li key={kept.file_id}>
          <KeptPicture id={kept.file_id} name={kept.name} />
          <CloseButton
            size="sm"
            variant="default"
            aria-label={`Remove ${kept.name}`}
            onClick={() => {
              remove(kept);
              dropPicture(kept).catch(complain);
            }}
          />
        </li>
      ))}
      {busy && <Loader size="sm" role="status" aria-label="Uploading" />}
    </Group>
  );
}

interface Draft {
  text: string;
  pictures: Kept[];
}

const NOTHING: Draft = { text: "", pictures: [] };

function contentOf({ text, pictures }: Draft): string | ContentBlock[] {
  const words = text.trim();
  if (pictures.length === 0) return words;
  const shown = pictures.map(({ file_id }) => ({ type: "image", source: { type: "file", file_id } }));
  return words === "" ? shown : [...shown, { type: "text", text: words }];
}

export type Writing = ReturnType<typeof useWriting>;

/** What was written and not sent, kept in this tab while it shows something else. */
export function useWriting(id: string) {
  const key = `roost.draft.${id}`;
  const [draft, setDraft] = useState(() => loaded(key));
  const [uploads, setUploads] = useState(0);
  useEffect(() => setDraft(loaded(key)), [key]);
  useEffect(() => {
    if (draft === NOTHING) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, JSON.stringify(draft));
  }, [key, draft]);
  const attach = (files: File[]) => {
    for (const file of files) {
      setUploads((count) => count + 1);
      keepPicture(file)
        .then((kept) => setDraft((before) => ({ ...before, pictures: [...before.pictures, kept] })))
        .catch(complain)
        .finally(() => setUploads((count) => count - 1));
    }
  };
  return { draft, change: setDraft, attach, busy: uploads > 0 };
}

function loaded(key: string): Draft {
  const kept = sessionStorage.getItem(key);
  return kept === null ? NOTHING : (JSON.parse(kept) as Draft);
}
