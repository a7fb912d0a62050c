// The turns of a conversation with a chat model. A next message is sent with all turns before it, as `messages`.
import { byId, element } from "./dom.js";
import { showAnswer } from "./json_view.js";

/** The messages that inputs ask for an answer to. */
export const asked = ({ messages = [], prompt }) => (prompt ? [...messages, { role: "user", content: prompt }] : messages);

/** Show messages {role, content} in a list, each as a bubble. */
export function showTurns(list, messages) {
  list.replaceChildren(
    ...messages.map(({ role, content }) => {
      const body = element("div", { class: "turn-text", "data-markdown": "" });
      showAnswer(body, typeof content === "string" ? content : JSON.stringify(content ?? null));
      return element("li", { class: "turn", "data-role": role }, element("span", { class: "turn-role" }, role), body);
    }),
  );
}

export class Conversation {
  /** `form` is an InputForm; `run` runs the model with its inputs; `change` is called when it has others. */
  constructor(form, { run, change }) {
    Object.assign(this, { form, run, change });
    this.next = byId("next");
    this.turns = [];
    this.sent = false; // whether the run that is shown was sent here, and not with the form
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.next.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      event.stopPropagation(); // Ctrl-Enter runs the form elsewhere
      this.send();
    });
    byId("composer").addEventListener("reset", () => this.clear());
    // Who types a prompt into the form begins a new conversation.
    form.fields.get("prompt")?.control.addEventListener("input", () => this.takeBack());
  }

  /** Show the conversation that the page was opened with, and how it was answered if that is known. */
  resume(input, answer) {
    this.turns = answer ? [...asked(input), { role: "assistant", content: answer }] : (input.messages ?? []);
    showTurns(byId("turns"), this.turns);
    byId("composer").hidden = !answer;
  }

  /** A run of these inputs begins. */
  begin(input) {
    this.turns = asked(input);
    showTurns(byId("turns"), this.turns);
    this.setRunning(true);
    if (this.sent) byId("turns").lastElementChild.scrollIntoView({ block: "start" });
    else byId("composer").hidden = true;
  }

  /** The run has ended with this answer; without one, what was sent here can be sent again. */
  end(answer) {
    this.setRunning(false);
    this.answer = answer;
    if (answer) byId("composer").hidden = false;
    else if (this.sent) {
      const { content } = this.turns.pop();
      this.next.value ||= content;
      showTurns(byId("turns"), this.turns);
    }
    this.sent = false;
  }

  /** Forget the turns; other inputs stay. */
  clear() {
    for (const name of ["prompt", "messages"]) this.form.set(name, undefined);
    this.change();
    this.turns = [];
    this.answer = "";
    byId("turns").replaceChildren();
    byId("composer").hidden = true;
  }

  setRunning(isRunning) {
    byId("stop").hidden = !isRunning;
    byId("stop").disabled = false;
    byId("send").hidden = byId("clear-conversation").hidden = isRunning;
  }

  send() {
    const text = this.next.value.trim();
    if (!text || byId("send").hidden) return;
    const answered = this.answer ? [{ role: "assistant", content: this.answer }] : [];
    this.messages = [...this.turns, ...answered, { role: "user", content: text }];
    this.form.set("prompt", undefined);
    this.form.set("messages", this.messages);
    this.change();
    this.next.value = "";
    this.turns = [...this.messages];
    this.sent = true;
    this.run();
  }

  takeBack() {
    const now = this.form.fields.get("messages").read().value;
    if (this.messages && JSON.stringify(now) === JSON.stringify(this.messages)) this.form.set("messages", undefined);
  }
}
