"""Uses the official OpenAI SDK for completions, the API from before chats, as programs do, and prints what it understood as
one JSON object.

The answers are scripted; the calls are made in the order in which the script has them.
"""

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["RAGMUX_BASE_URL"], api_key=os.environ["RAGMUX_API_KEY"], max_retries=0)
model = os.environ["RAGMUX_MODEL"]
prompt = "In Oslo"


def whole(**options):
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=50, **options)
    return {
        "texts": [choice.text for choice in answer.choices],
        "finish": answer.choices[0].finish_reason,
        "model": answer.model,
        "total": answer.usage.total_tokens,
    }


def streamed(**options):
    text, finish, usage = [], None, None
    for chunk in client.completions.create(model=model, prompt=prompt, max_tokens=50, stream=True, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text.append(choice.text)
            finish = choice.finish_reason or finish
    return {"text": "".join(text), "finish": finish, "total": usage.total_tokens if usage else None}


def failing(**options):
    try:
        client.completions.create(**{"model": model, "prompt": prompt, **options})
    except openai.APIStatusError as error:
        return {"status": error.status_code, "message": error.body["message"], "code": error.code}
    return None


def breaking():
    text = []
    try:
        for chunk in client.completions.create(model=model, prompt=prompt, stream=True):
            text += [choice.text for choice in chunk.choices]
    except openai.APIError as error:
        return {"text": "".join(text), "code": error.code}
    return None


print(
    json.dumps(
        {
            "whole": whole(),
            "two": whole(n=2),
            "streamed": streamed(),
            "streamed_with_usage": streamed(stream_options={"include_usage": True}),
            "failing": failing(),
            "breaking": breaking(),
            "foreign": failing(model="claude"),
        }
    )
)
