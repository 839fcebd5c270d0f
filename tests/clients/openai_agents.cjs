// Two turns of an agent of @openai/agents, over each API; prints what it said as JSON. Arguments: URL, prompts as JSON.
const { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool } = require("@openai/agents");
const { OpenAI } = require("openai");

async function main(url, prompts) {
  setTracingDisabled(true); // traces would go to OpenAI
  setDefaultOpenAIClient(new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 }));
  const weather = tool({
    name: "get_weather",
    description: "The weather in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
    execute: async () => prompts.result,
  });
  const found = {};
  for (const api of ["chat_completions", "responses"]) {
    setOpenAIAPI(api);
    const agent = new Agent({ name: "Agent", instructions: "Help.", model: "spoken", tools: [weather] });
    const called = (await run(agent, prompts.call)).finalOutput;
    const stream = await run(agent, prompts.text, { stream: true });
    let streamed = "";
    for await (const piece of stream.toTextStream()) streamed += piece;
    await stream.completed;
    found[api] = { called, streamed };
  }
  return found;
}

main(process.argv[2], JSON.parse(process.argv[3])).then(
  (found) => console.log(JSON.stringify(found)),
  (error) => { console.error(error); process.exit(1); });
