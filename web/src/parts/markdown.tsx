import "highlight.js/styles/github-dark-dimmed.css";

import { memo } from "react";
import Markdown from "react-markdown";
import rehypeHighlight from "rehype-highlight";
import remarkGfm from "remark-gfm";

import { AnswerPicture } from "./picture";

interface HastNode {
  tagName?: string;
  value?: string;
  children?: HastNode[];
}

/** Without the line break that ends every block of code: the cursor of a text being written stands after it. */
const trimBlocks = () => (node: HastNode) => {
  for (const child of node.children ?? []) trimBlocks()(child);
  const last = node.tagName === "pre" ? node.children?.[0]?.children?.at(-1) : undefined;
  if (last?.value !== undefined) last.value = last.value.replace(/\n$/, "");
};

/** Markdown from an agent: no HTML of its own, links open elsewhere, and images are the session's own. */
export const Prose = memo(function Prose({ text }: { text: string }) {
  return (
    <div className="prose">
      <Markdown
        remarkPlugins={[remarkGfm]}
        rehypePlugins={[trimBlocks, [rehypeHighlight, { detect: true }]]}
        components={{
          a: ({ href, children }) => (
            <a href={href} target="_blank" rel="noreferrer noopener">
              {children}
            </a>
          ),
          img: ({ alt, src }) => <AnswerPicture src={src} alt={alt} />,
          input: ({ checked }) => <input type="checkbox" checked={checked} disabled aria-label={checked ? "done" : "not done"} />,
          pre: ({ children }) => <pre tabIndex={0}>{children}</pre>,
          table: ({ children }) => (
            <div className="wide" tabIndex={0}>
              <table>{children}</table>
            </div>
          ),
        }}
      >
        {text}
      </Markdown>
    </div>
  );
});
