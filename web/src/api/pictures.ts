/** Pictures that are shown to a model: kept by the server, named by messages. */

import { useQuery } from "@tanstack/react-query";

import { ApiError, post, remove, request } from "./http";

const KINDS = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/** What the server takes of one picture, and the longest side that models look at. */
const MOST_BYTES = 3_932_160;
const LONGEST_SIDE = 2000;

export interface Kept {
  file_id: string;
  name: string;
}

export async function keepPicture(file: File): Promise<Kept> {
  const form = new FormData();
  form.append("file", await fitted(file), file.name || "picture");
  const kept = await post<{ id: string }>("/v1/files", form);
  return { file_id: kept.id, name: file.name || "picture" };
}

export const dropPicture = (kept: Kept) => remove(`/v1/files/${kept.file_id}`);

/** The address of a kept picture in this page; of a session's message, if one is given. */
export const usePicture = (id: string, session?: string) =>
  useQuery({
    queryKey: ["picture", id],
    queryFn: async () => URL.createObjectURL(new Blob([await content(id, session)])),
    staleTime: Infinity,
    gcTime: Infinity, // an address that was given up shows nothing
  });

/** A session's own copy is for whoever sees the session; a fork has none, and shows the original to its owner. */
async function content(id: string, session?: string): Promise<ArrayBuffer> {
  const original = () => request<ArrayBuffer>("GET", `/v1/files/${id}/content`, undefined, "bytes");
  if (session === undefined) return original();
  return request<ArrayBuffer>("GET", `/roost/v1/sessions/${session}/attachments/${id}/content`, undefined, "bytes").catch((error) => {
    if (error instanceof ApiError && error.status === 404) return original();
    throw error;
  });
}

/** As it is, if a model can be shown it; else smaller, as a JPEG. A phone's photograph is too large. */
async function fitted(file: File): Promise<Blob> {
  if (KINDS.includes(file.type) && file.size <= MOST_BYTES) return file;
  const picture = await createImageBitmap(file).catch(() => {
    throw new Error(`“${file.name}” is not a picture that this browser can read.`);
  });
  const scale = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  const canvas = new OffscreenCanvas(Math.round(picture.width * scale), Math.round(picture.height * scale));
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}
