// What an application in Node does with the openai package; prints what it got as JSON. Arguments: URL, prompts as JSON.
const { OpenAI } = require("openai");

async function main(url, prompts) {
  const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
  const ask = (text, fields) => ({ model: "spoken", messages: [{ role: "user", content: text }], ...fields });
  const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const found = {};

  found.models = (await client.models.list()).data.map((one) => one.id);
  found.whole = (await client.chat.completions.create(ask(prompts.text))).choices[0];

  const chunks = [];
  const stream = await client.chat.completions.create(
    ask(prompts.text, { stream: true, stream_options: { include_usage: true } }));
  for await (const chunk of stream) chunks.push(chunk);
  found.streamed = chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join("");
  found.usage = chunks.at(-1).usage;

  const runner = client.chat.completions.runTools(ask(prompts.call, {
    stream: true,
    tools: [{ type: "function", function: {
      name: "get_weather", parameters, parse: JSON.parse, function: ({ city }) => { found.city = city; return prompts.result; },
    } }],
  }));
  found.ran = await runner.finalContent();

  found.response = (await client.responses.create({ model: "spoken", input: prompts.text, include: [], stream: false })).output_text;
  const events = [];
  for await (const event of client.responses.stream({ model: "spoken", input: prompts.text })) events.push(event.type);
  found.events = events;

  try {
    await client.chat.completions.create(ask("x", { model: "none-such" }));
  } catch (error) {
    found.error = { status: error.status, code: error.code, kind: error.constructor.name };
  }
  return found;
}

main(process.argv[2], JSON.parse(process.argv[3])).then(
  (found) => console.log(JSON.stringify(found)),
  (error) => { console.error(error); process.exit(1); });
