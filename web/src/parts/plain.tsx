import Markdown from "react-markdown";
import remarkGfm from "remark-gfm";

/** Markdown as the plain text of a line or two, where there is no room for headings, lists and code. */
export function Plain({ text }: { text: string }) {
  return (
    <Markdown remarkPlugins={[remarkGfm]} allowedElements={[]} unwrapDisallowed>
      {text}
    </Markdown>
  );
}
