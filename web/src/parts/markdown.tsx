import "highlight.js/styles/github-dark-dimmed.css";

import { memo } from "react";
import Markdown from "react-markdown";
import rehypeHighlight from "rehype-highlight";
import remarkGfm from "remark-gfm";

import { AnswerPicture } from "./picture";

/** Markdown from an agent: no HTML of its own, links open elsewhere, and images are the session's own. */
export const Prose = memo(function Prose({ text }: { text: string }) {
  return (
    <div className="prose">
      <Markdown
        remarkPlugins={[remarkGfm]}
        rehypePlugins={[[rehypeHighlight, { detect: true }]]}
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
