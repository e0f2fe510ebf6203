"""Asks a question about an uploaded document through the official OpenAI SDK, streamed and not, and prints what came
back as one JSON object."""

import json
import os
import sys

import openai

client = openai.OpenAI(base_url=os.environ["RAGMUX_BASE_URL"], api_key=os.environ["RAGMUX_API_KEY"], max_retries=0)
question = sys.argv[1]
messages = [{"role": "user", "content": question}]

raw = client.chat.completions.with_raw_response.create(model="chat", messages=messages)
whole = raw.parse()
vectors = client.embeddings.create(model="embed", input=["one text", "another text"])
stream = client.chat.completions.create(
    model="chat", messages=messages, stream=True, stream_options={"include_usage": True}
)
pieces, usage, finish = [], None, None
for chunk in stream:
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        finish = choice.finish_reason or finish
    usage = chunk.usage or usage

try:
    openai.OpenAI(base_url=os.environ["RAGMUX_BASE_URL"], api_key="sk-proj-wrong", max_retries=0).models.list()
    wrong_key = "accepted"
except openai.AuthenticationError as error:
    wrong_key = error.body["type"]

print(
    json.dumps(
        {
            "models": [model.id for model in client.models.list()],
            "whole": whole.choices[0].message.content,
            "whole_model": whole.model,
            "whole_tokens": whole.usage.total_tokens,
            "hits": raw.headers["x-ragmux-rag-hits"],
            "sources": raw.headers["x-ragmux-rag-sources"],
            "pieces": len(pieces),
            "streamed": "".join(pieces),
            "finish": finish,
            "streamed_tokens": usage.total_tokens,
            "vectors": [len(item.embedding) for item in vectors.data],
            "wrong_key": wrong_key,
        }
    )
)
