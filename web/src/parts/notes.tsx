/** Metadata as people write it: notes of the form key=value. */

import { TagsInput } from "@mantine/core";

export const notesOf = (metadata: Record<string, string>, hidden: string[] = []) =>
  Object.entries(metadata)
    .filter(([key]) => !hidden.includes(key))
    .map(([key, value]) => `${key}=${value}`);

export const metadataOf = (notes: string[]): Record<string, string> =>
  Object.fromEntries(notes.map((note) => [note.slice(0, note.indexOf("=")).trim(), note.slice(note.indexOf("=") + 1).trim()]));

/** What makes the one of the other, as the API wants it: what is gone is null. */
export function patchOf(before: Record<string, string>, after: Record<string, string>): Record<string, string | null> {
  const gone = Object.keys(before).filter((key) => !(key in after));
  return { ...after, ...Object.fromEntries(gone.map((key) => [key, null])) };
}

/** Why these are no notes; undefined if they are. */
export function unclear(notes: string[]): string | undefined {
  const wrong = notes.filter((note) => !/^[^=]*[^=\s][^=]*=/.test(note));
  return wrong.length > 0 ? `Not of the form key=value: ${wrong.join(", ")}` : undefined;
}

export function NotesInput({ of, notes, setNotes, error }: { of: string; notes: string[]; setNotes: (notes: string[]) => void; error?: string }) {
  return (
    <TagsInput
      label="Metadata"
      description={`Notes of your own, such as team=web. No secrets: everyone who may see the ${of} can read them.`}
      error={unclear(notes) ?? error}
      value={notes}
      onChange={setNotes}
    />
  );
}
