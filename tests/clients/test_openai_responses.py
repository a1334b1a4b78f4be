"""OpenAI's own Python client on /v1/responses: whole answers, streams and the SDK's accumulation of
them, tool loops with items passed back, refusals.

    test_openai_responses.py --bin FOLDER [--slow] [CASE ...]"""

import asyncio
import json
import sys

import openai
import pydantic

from cases import main
from test_openai_sdk import ANSWER, City, Context, LONG, Lookup, MODEL, let_go, refused, same

ASK = "What is 12 plus 30?"
WEATHER = [{"role": "user", "content": "Weather in Oslo?"}]
TOOLS = [{"type": "function", "name": "get_weather",
          "description": "Get the current weather in a city.",
          "parameters": {"type": "object", "properties": {"location": {"type": "string"}},
                         "required": ["location"]}}]


def create(c, input=ASK, **more):
    return c.client.responses.create(model=MODEL, input=input, **{"temperature": 0, **more})


def kinds(response):
    return [item.type for item in response.output]


def thought(response):
    return response.output[0].content[0].text


def gather(stream):
    """Events of a stream, checked for their order, put together by hand."""
    events = list(stream)
    same([e.sequence_number for e in events], list(range(len(events))))
    same([e.type for e in events[:2]], ["response.created", "response.in_progress"])
    same({e.response.id for e in events if hasattr(e, "response")}, {events[0].response.id})
    text, done, items = {}, {}, {}
    for e in events:
        if e.type.endswith(".delta"):
            text[e.output_index] = text.get(e.output_index, "") + e.delta
        elif e.type in ("response.reasoning_text.done", "response.output_text.done"):
            done[e.output_index] = e.text
        elif e.type == "response.function_call_arguments.done":
            done[e.output_index] = e.arguments
        elif e.type == "response.output_item.added":
            same(e.output_index, len(items))
            same(e.item.status, "in_progress")
            items[e.output_index] = None
        elif e.type == "response.output_item.done":
            same(items[e.output_index], None)
            items[e.output_index] = e.item
    same(text, done)
    last = events[-1].response
    same(list(items.values()), last.output)
    return last, [e.type for e in events]


# ---- answers ----


def test_sdk_response_whole(c):
    r = create(c, instructions="You are brief.", metadata={"k": "v"}, user="u")
    same((r.object, r.status, r.model, r.error), ("response", "completed", MODEL, None))
    same(kinds(r), ["reasoning", "message"])
    same(r.output[1].content[0].type, "output_text")
    same({i.status for i in r.output}, {"completed"})
    same((r.instructions, r.metadata, r.user), ("You are brief.", {"k": "v"}, "u"))
    same((r.tool_choice, r.tools, r.parallel_tool_calls), ("auto", [], True))
    r = create(c)
    same(r.output_text, ANSWER)
    chat = c.chat()
    same(thought(r), chat.choices[0].message.model_extra["reasoning"])
    same(r.usage.input_tokens, chat.usage.prompt_tokens)
    same(r.usage.output_tokens, chat.usage.completion_tokens)
    same(r.usage.output_tokens_details.reasoning_tokens,
         chat.usage.completion_tokens_details.reasoning_tokens)
    same(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens)


def test_sdk_response_is_valid(c):
    """The SDK builds its objects without looking; here they are validated."""
    for r in (create(c), create(c, WEATHER, tools=TOOLS), create(c, max_output_tokens=4)):
        type(r).model_validate(r.model_dump(by_alias=True, exclude_unset=True))
    for e in create(c, WEATHER, tools=TOOLS, stream=True):
        type(e).model_validate(e.model_dump(by_alias=True, exclude_unset=True))


def test_sdk_response_stream(c):
    whole = create(c)
    last, types = gather(create(c, stream=True))
    same((last.status, last.output_text, thought(last)), ("completed", ANSWER, thought(whole)))
    same(last.usage, whole.usage)
    same(types[-1], "response.completed")
    assert types.count("response.output_text.delta") > 3, "the answer came in one piece"
    assert types.count("response.reasoning_text.delta") > 3, "the reasoning came in one piece"


def test_sdk_response_stream_helper(c):
    """client.responses.stream(): the SDK's own accumulation of a stream."""
    with c.client.responses.stream(model=MODEL, input=ASK, temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    same((text, final.output_text, final.status), (ANSWER, ANSWER, "completed"))


def test_sdk_response_effort(c):
    used = [create(c, reasoning={"effort": e, "summary": "auto"}) for e in ("low", "medium", "high")]
    same([r.reasoning.effort for r in used], ["low", "medium", "high"])
    used = [r.usage.output_tokens for r in used]
    assert used[0] < used[1] < used[2], used


def test_sdk_response_incomplete(c):
    """A limit inside the reasoning, and one inside the message."""
    whole = create(c)
    for limit, items in ((5, ["reasoning"]), (whole.usage.output_tokens - 4,
                                              ["reasoning", "message"])):
        r = create(c, max_output_tokens=limit)
        same((r.status, r.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        same((kinds(r), r.usage.output_tokens, r.max_output_tokens), (items, limit, limit))
        same([i.status for i in r.output], ["completed"] * (len(items) - 1) + ["incomplete"])
        last, types = gather(create(c, max_output_tokens=limit, stream=True))
        same((types[-1], last.status), ("response.incomplete", "incomplete"))
        same(last.output_text, r.output_text)


def test_sdk_response_stop(c):
    """No field of this API, but one that every other endpoint here has."""
    ask = {"extra_body": {"stop": ["never said", " = "]}}
    r = create(c, **ask)
    same((r.output_text, r.status, r.output[1].status), ("12 + 30", "completed", "completed"))
    last, types = gather(create(c, **ask, stream=True))
    same((last.output_text, types[-1]), ("12 + 30", "response.completed"))


def test_sdk_response_logprobs(c):
    ask = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = create(c, **ask).output[1].content[0]
    same("".join(t.token for t in part.logprobs), ANSWER)
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in part.logprobs)
    events = list(create(c, **ask, stream=True))
    streamed = [t for e in events if e.type == "response.output_text.delta" for t in e.logprobs]
    same([(t.token, t.logprob) for t in streamed], [(t.token, t.logprob) for t in part.logprobs])
    same(create(c).output[1].content[0].logprobs, [])


# ---- conversations ----


def finish_weather(c, output):
    """The way of the SDK's documentation: the output's items go back as they are."""
    calls = [i for i in output if i.type == "function_call"]
    same(len(calls), 1)
    same((calls[0].name, json.loads(calls[0].arguments)), ("get_weather", {"location": "Oslo"}))
    items = WEATHER + output + [{"type": "function_call_output", "call_id": calls[0].call_id,
                                 "output": "4 degrees, light rain"}]
    r = create(c, items, tools=TOOLS)
    same((r.output_text, r.status), ("The weather in Oslo:\n4 degrees, light rain", "completed"))
    return r


def test_sdk_response_tools(c):
    r = create(c, WEATHER, tools=TOOLS)
    same((kinds(r), r.status), (["reasoning", "function_call"], "completed"))
    same((r.tools[0].name, r.tools[0].parameters), ("get_weather", TOOLS[0]["parameters"]))
    with_reasoning = finish_weather(c, r.output).usage.input_tokens
    without = finish_weather(c, r.output[1:]).usage.input_tokens
    assert with_reasoning > without, "the reasoning did not go back to the model"
    forced = create(c, WEATHER, tools=TOOLS,
                    tool_choice={"type": "function", "name": "get_weather"})
    same([i.name for i in forced.output if i.type != "reasoning"], ["get_weather"])
    same(forced.tool_choice.name, "get_weather")


def test_sdk_response_tools_stream(c):
    last, types = gather(create(c, WEATHER, tools=TOOLS, stream=True))
    assert types.count("response.function_call_arguments.delta") > 1
    finish_weather(c, last.output)
    with c.client.responses.stream(model=MODEL, input=WEATHER, tools=TOOLS, temperature=0) as s:
        final = s.get_final_response()
    finish_weather(c, final.output)


def test_sdk_response_conversation(c):
    """A second question after the first one's output: its reasoning is no part of the prompt."""
    first = create(c)
    items = [{"role": "user", "content": ASK}] + first.output
    second = create(c, items + [{"role": "user", "content": "What is 20 plus 5?"}])
    same(second.output_text, "20 + 5 = 25.")
    bare = create(c, items[:1] + first.output[1:] + [{"role": "user",
                                                      "content": "What is 20 plus 5?"}])
    same(bare.usage.input_tokens, second.usage.input_tokens)


def test_sdk_response_previous(c):
    """A conversation that the router keeps: questions, and the output of a call."""
    first = create(c)
    second = create(c, "What is 20 plus 5?", previous_response_id=first.id)
    same((second.output_text, second.previous_response_id), ("20 + 5 = 25.", first.id))
    by_hand = create(c, [{"role": "user", "content": ASK}] + first.output +
                     [{"role": "user", "content": "What is 20 plus 5?"}])
    same(second.usage.input_tokens, by_hand.usage.input_tokens)
    third = create(c, "Weather in Oslo?", previous_response_id=second.id, tools=TOOLS, stream=True)
    call = gather(third)[0]
    last = create(c, [{"type": "function_call_output", "call_id": call.output[-1].call_id,
                       "output": "4 degrees"}], previous_response_id=call.id, tools=TOOLS)
    same(last.output_text, "The weather in Oslo:\n4 degrees")
    # Items of kept responses by their ids alone, as some clients send them.
    ids = [{"type": "item_reference", "id": i.id} for i in first.output]
    named = create(c, [{"role": "user", "content": ASK}] + ids +
                   [{"role": "user", "content": "What is 20 plus 5?"}])
    same((named.output_text, named.usage.input_tokens), ("20 + 5 = 25.", second.usage.input_tokens))
    # Instructions are those of the request alone.
    brief = create(c, instructions="Be brief.")
    after = create(c, "What is 20 plus 5?", previous_response_id=brief.id)
    same(after.usage.input_tokens, second.usage.input_tokens)


def test_sdk_response_kept(c):
    kept = create(c)
    got = c.client.responses.retrieve(kept.id)
    same(got, kept)
    c.client.responses.delete(kept.id)
    not_kept = create(c, extra_body={"store": False})
    same([r.model_extra["store"] for r in (kept, not_kept)], [True, False])
    for gone in (kept.id, not_kept.id, "resp_1"):
        refused(openai.NotFoundError, lambda: c.client.responses.retrieve(gone),
                param="response_id", code="not_found", says=[gone])
        refused(openai.NotFoundError, lambda: c.client.responses.delete(gone),
                param="response_id", code="not_found", says=[gone])
        refused(openai.BadRequestError, lambda: create(c, previous_response_id=gone),
                param="previous_response_id", code="previous_response_not_found",
                says=[gone, "input"])


# ---- structured output ----


def test_sdk_response_parse(c):
    ask = {"model": MODEL, "input": "Capital of Peru?", "text_format": City, "temperature": 1,
           "max_output_tokens": 400}
    ended = 0
    for seed in range(4):
        try:
            r = c.client.responses.parse(**ask, extra_body={"seed": seed})
        except pydantic.ValidationError:
            continue  # a model of this size may talk without end inside a string
        assert isinstance(r.output_parsed, City), r.output_text
        same((r.text.format.type, r.text.format.name, r.text.format.strict),
             ("json_schema", "City", True))
        same(json.loads(r.output_text), r.output_parsed.model_dump())
        with c.client.responses.stream(**ask, extra_body={"seed": seed}) as stream:
            same(stream.get_final_response().output_parsed, r.output_parsed)
        ended += 1
    assert ended, "no answer came to its end"
    r = create(c, text={"format": {"type": "json_object"}}, max_output_tokens=200)
    assert r.status == "incomplete" or isinstance(json.loads(r.output_text), dict)


def test_sdk_response_strict_tools(c):
    tool = openai.pydantic_function_tool(Lookup)["function"] | {"type": "function"}
    same(tool["strict"], True)
    for choice in ("required", {"type": "function", "name": "Lookup"}):
        r = c.client.responses.parse(model=MODEL, input=ASK, tools=[tool], tool_choice=choice,
                                     temperature=1, max_output_tokens=400, extra_body={"seed": 1})
        same((r.status, [(i.type, i.name) for i in r.output if i.type != "reasoning"]),
             ("completed", [("function_call", "Lookup")]))
        assert isinstance(r.output[-1].parsed_arguments, (Lookup, dict)), r.output
        Lookup.model_validate_json(r.output[-1].arguments)
    same(kinds(create(c, WEATHER, tools=TOOLS, tool_choice="none")), ["reasoning", "message"])


def test_sdk_response_schema_errors(c):
    bad = {"type": "object", "properties": {"p": {"not": {}}}}
    form = {"format": {"type": "json_schema", "name": "a", "schema": bad}}
    for stream in (False, True):
        refused(openai.BadRequestError, lambda: create(c, text=form, stream=stream),
                param="text.format.schema", code=None, says=["not", "#/properties/p"])
    refused(openai.BadRequestError, lambda: create(
        c, tools=[{"type": "function", "name": "f", "parameters": bad, "strict": True}]),
        param="tools[0].parameters", code=None, says=["not", "#/properties/p"])
    form["format"]["strict"] = False
    same(create(c, text=form).status, "completed")


# ---- refusals ----


def test_sdk_response_errors(c):
    bad = openai.BadRequestError
    for more, param, says in (
            ({"max_output_tokens": "5"}, "max_output_tokens", "a string"),
            ({"temperature": 3}, "temperature", "0 and 2"),
            ({"background": True}, "background", "not supported"),
            ({"tools": [{"type": "web_search"}]}, "tools[0]", "web_search"),
            ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0]", "msg_x"),
            ({"input": [{"type": "function_call_output", "call_id": "nope", "output": "x"}]},
             "input[0].call_id", "nope"),
            ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "a b"),
            ({"stream": True, "truncation": "auto"}, "truncation", "not supported")):
        refused(bad, lambda: create(c, **more), param=param, code=None, says=[says])
    refused(openai.NotFoundError,
            lambda: c.client.responses.create(model="gpt-5", input=ASK), param="model",
            code="model_not_found", says=["gpt-5", MODEL])
    limit = c.client.models.retrieve(MODEL).model_extra["max_model_len"]
    refused(bad, lambda: create(c, max_output_tokens=limit), param="max_output_tokens",
            code="context_length_exceeded", says=[str(limit)])
    refused(bad, lambda: create(c, "1 " * limit), param="input", code="context_length_exceeded",
            says=[str(limit), "tokens long"])


# ---- several at once, and gone ----


def test_sdk_response_async(c):
    asks = [f"What is {i + 3} plus {5 * i + 2}?" for i in range(8)]

    async def last_of(client, ask):
        async with client.responses.stream(model=MODEL, input=ask, temperature=1,
                                           extra_body={"seed": 1}) as stream:
            return await stream.get_final_response()

    # seed is no parameter of the SDK's; it goes into the body beside the others.
    async def seeded():
        async with openai.AsyncOpenAI(**c.options) as client:
            return await asyncio.gather(*(
                last_of(client, a) if i % 2 == 0 else client.responses.create(
                    model=MODEL, input=a, temperature=1, extra_body={"seed": 1})
                for i, a in enumerate(asks)))

    alone = [create(c, a, temperature=1, extra_body={"seed": 1}) for a in asks]
    both = asyncio.run(seeded())
    same([(r.output_text, thought(r)) for r in both], [(r.output_text, thought(r)) for r in alone])
    same(len({r.id for r in both + alone}), 2 * len(asks))


def test_sdk_response_close_of_a_stream(c):
    def leave(ask):
        stream = create(c, ask["messages"], max_output_tokens=LONG, stream=True,
                        extra_body=ask["extra_body"])
        with stream:
            for _ in zip(range(5), stream):
                pass
            same(c.service.metric("decode", "vllm:num_requests_running"), 1)

    let_go(c, leave)


def test_sdk_response_nothing_is_left(c):
    c.service.wait(c.service.is_empty, "the workers are empty at the end")
    same(c.service.metric("router", "vllm:num_requests_running"), 0)


if __name__ == "__main__":
    sys.exit(main(globals(), "test_sdk_", Context))
