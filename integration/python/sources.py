"""Asks for the sources of an answer through the official SDKs, which know nothing of them, and prints what they hand on as
one JSON object."""

import json
import os
import sys

import anthropic
import openai

base_url, key = os.environ["RAGMUX_BASE_URL"], os.environ["RAGMUX_API_KEY"]
chats = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
messages = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0)
model, question = os.environ["RAGMUX_MODEL"], sys.argv[1]
said = [{"role": "user", "content": question}]
wanted = {"ragmux": {"include_context": True}}


def told(of):
    """The member of ours that an object of an SDK carries."""
    return (of.model_extra or {}).get("ragmux")


def chat():
    answer = chats.chat.completions.create(model=model, messages=said, extra_body=wanted)
    return {"text": answer.choices[0].message.content, "ragmux": told(answer)}


def chat_stream():
    text, ours = [], None
    for chunk in chats.chat.completions.create(model=model, messages=said, stream=True, extra_body=wanted):
        ours = told(chunk) or ours
        text += [choice.delta.content or "" for choice in chunk.choices]
    return {"text": "".join(text), "ragmux": ours}


def chat_helper():
    with chats.chat.completions.stream(model=model, messages=said, extra_body=wanted) as stream:
        ours = [told(event.chunk) for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    return {"text": final.choices[0].message.content, "ragmux": next(filter(None, ours), None)}


def response():
    answer = chats.responses.create(model=model, input=question, extra_body=wanted)
    return {"text": answer.output_text, "ragmux": told(answer)}


def response_stream():
    text, ours, last = [], None, None
    for event in chats.responses.create(model=model, input=question, stream=True, extra_body=wanted):
        last = event.type
        if event.type == "ragmux.sources":
            ours = told(event)
        if event.type == "response.output_text.delta":
            text.append(event.delta)
    return {"text": "".join(text), "ragmux": ours, "last": last}


def message():
    answer = messages.messages.create(model=model, max_tokens=400, messages=said, extra_body=wanted)
    return {"text": answer.content[0].text, "ragmux": told(answer)}


def message_stream():
    with messages.messages.stream(model=model, max_tokens=400, messages=said, extra_body=wanted) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    return {"text": final.content[0].text, "last": kinds[-1]}


print(
    json.dumps(
        {
            "chat": chat(),
            "chat_stream": chat_stream(),
            "chat_helper": chat_helper(),
            "response": response(),
            "response_stream": response_stream(),
            "message": message(),
            "message_stream": message_stream(),
        }
    )
)
