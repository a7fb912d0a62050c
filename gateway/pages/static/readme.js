// The README as Markdown.
import { byId } from "./dom.js";
import { showMarkdown } from "./markdown.js";

const readme = byId("readme");
if (readme) {
  readme.classList.replace("plain", "markdown");
  showMarkdown(readme, readme.textContent);
}
