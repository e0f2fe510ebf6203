"""Uses the official OpenAI SDK as programs do, and prints what it understood as one JSON object.

The answers are scripted; the calls are made in the order in which the script has them.
"""

import json
import os

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=os.environ["RAGMUX_BASE_URL"], api_key=os.environ["RAGMUX_API_KEY"], max_retries=0)
model = os.environ["RAGMUX_MODEL"]
question = [{"role": "user", "content": "What is the weather in Oslo?"}]
tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


class Forecast(BaseModel):
    city: str
    degrees: int


def whole():
    answer = client.chat.completions.create(model=model, messages=question, max_tokens=50)
    choice = answer.choices[0]
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "model": answer.model,
        "total": answer.usage.total_tokens,
    }


def streamed(**options):
    text, calls, finish, roles, usage = [], {}, [], [], None
    for chunk in client.chat.completions.create(model=model, messages=question, stream=True, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish.append(choice.finish_reason)
            roles.append(choice.delta.role)
            text.append(choice.delta.content or "")
            for call in choice.delta.tool_calls or []:
                kept = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                kept["id"] += call.id or ""
                kept["name"] += call.function.name or ""
                kept["arguments"] += call.function.arguments or ""
    return {
        "text": "".join(text),
        "calls": list(calls.values()),
        "finish": finish[-1],
        "early_finish": [reason for reason in finish[:-1] if reason],
        "role": roles[0],
        "total": usage.total_tokens if usage else None,
    }


def with_tools():
    first = client.chat.completions.create(model=model, messages=question, tools=tools)
    message = first.choices[0].message
    call = message.tool_calls[0]
    conversation = question + [message, {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": -3}'}]
    second = client.chat.completions.create(model=model, messages=conversation, tools=tools)
    return {
        "finish": first.choices[0].finish_reason,
        "id": call.id,
        "name": call.function.name,
        "city": json.loads(call.function.arguments)["city"],
        "text": second.choices[0].message.content,
    }


def structured():
    answer = client.chat.completions.parse(model=model, messages=question, response_format=Forecast)
    return answer.choices[0].message.parsed.model_dump()


def embedded():
    # The SDK asks for base64 and makes numbers of it.
    return [item.embedding for item in client.embeddings.create(model="embed", input=["one", "two"]).data]


def failing():
    try:
        client.chat.completions.create(model=model, messages=question)
    except openai.RateLimitError as error:
        return {"status": error.status_code, "message": error.body["message"], "code": error.code}
    return None


print(
    json.dumps(
        {
            "whole": whole(),
            "streamed": streamed(),
            "streamed_with_usage": streamed(stream_options={"include_usage": True}),
            "tools": with_tools(),
            "streamed_tools": streamed(tools=tools),
            "structured": structured(),
            "vectors": embedded(),
            "failing": failing(),
        }
    )
)
