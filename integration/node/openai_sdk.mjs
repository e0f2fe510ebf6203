// Uses the official OpenAI SDK for Node as programs do, and prints what it understood as one JSON object.

import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.RAGMUX_BASE_URL,
  apiKey: process.env.RAGMUX_API_KEY,
  maxRetries: 0,
});
const model = process.env.RAGMUX_MODEL;
const messages = [{ role: "user", content: "What is the weather in Oslo?" }];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "The weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

const whole = await client.chat.completions.create({ model, messages, max_tokens: 50 });

let streamed = "";
let total = null;
const stream = await client.chat.completions.create({
  model,
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  total = chunk.usage?.total_tokens ?? total;
}

const asked = await client.chat.completions.create({ model, messages, tools });
const call = asked.choices[0].message.tool_calls[0];
const after = await client.chat.completions.create({
  model,
  messages: [
    ...messages,
    asked.choices[0].message,
    { role: "tool", tool_call_id: call.id, content: '{"degrees": -3}' },
  ],
  tools,
});

const runner = client.chat.completions.stream({ model, messages, tools });
const final = await runner.finalChatCompletion();

const structured = await client.chat.completions.create({
  model,
  messages,
  response_format: {
    type: "json_schema",
    json_schema: {
      name: "forecast",
      strict: true,
      schema: {
        type: "object",
        properties: { city: { type: "string" }, degrees: { type: "integer" } },
        required: ["city", "degrees"],
        additionalProperties: false,
      },
    },
  },
});

const embeddings = await client.embeddings.create({ model: "embed", input: ["one", "two"] });

let failing = null;
try {
  await client.chat.completions.create({ model, messages });
} catch (error) {
  failing = { status: error.status, name: error.constructor.name, message: error.error?.message };
}

let responses = null;
if (process.argv.includes("responses")) {
  const answer = await client.responses.create({ model, input: "What is the weather in Oslo?" });
  let text = "";
  for await (const event of await client.responses.create({ model, input: "And in Rome?", stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  responses = { text: answer.output_text, streamed: text };
}

console.log(
  JSON.stringify({
    whole: { text: whole.choices[0].message.content, finish: whole.choices[0].finish_reason, model: whole.model },
    streamed,
    total,
    tools: { id: call.id, name: call.function.name, city: JSON.parse(call.function.arguments).city },
    after: after.choices[0].message.content,
    streamedTools: final.choices[0].message.tool_calls.map((made) => ({
      id: made.id,
      name: made.function.name,
      arguments: made.function.arguments,
    })),
    structured: JSON.parse(structured.choices[0].message.content),
    vectors: embeddings.data.map((item) => item.embedding),
    failing,
    responses,
  }),
);
