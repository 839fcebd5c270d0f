// An answer put together from the chunks of a chat stream.

export class Reply {
  content = "";
  reasoning = "";
  calls = []; // {id, name, arguments}
  finish = null;
  usage = null; // {prompt, completion, cached}, the latest that was told
  sentAt;
  firstAt = null;
  lastAt = null;

  constructor(now) {
    this.sentAt = now;
  }

  /** One event's JSON, at `now` milliseconds. Throws where it tells of an error. */
  take(chunk, now) {
    if (chunk.error) throw Object.assign(new Error(chunk.error.message), { code: chunk.error.code });
    if (chunk.usage) this.usage = usage(chunk.usage);
    for (const { delta, finish_reason: finish } of chunk.choices ?? []) {
      const text = delta.content ?? "";
      const thought = delta.reasoning_content ?? delta.reasoning ?? "";
      this.content += text;
      this.reasoning += thought;
      for (const call of delta.tool_calls ?? []) this.#call(call);
      if (text || thought || delta.tool_calls) this.#time(now);
      if (finish) this.finish = finish;
    }
  }

  #call({ index, id, function: of = {} }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    if (of.name) call.name = of.name;
    call.arguments += of.arguments ?? "";
  }

  #time(now) {
    this.firstAt ??= now;
    this.lastAt = now;
  }

  /** Seconds to the first word. */
  get ttft() {
    return this.firstAt === null ? null : (this.firstAt - this.sentAt) / 1000;
  }

  /** Tokens per second after the first; null where there was no second. */
  get rate() {
    const count = (this.usage?.completion ?? 0) - 1;
    const time = this.lastAt === null ? 0 : (this.lastAt - this.firstAt) / 1000;
    return count > 0 && time > 0 ? count / time : null;
  }
}

const usage = (told) => ({
  prompt: told.prompt_tokens,
  completion: told.completion_tokens,
  cached: told.prompt_tokens_details?.cached_tokens ?? 0,
});
