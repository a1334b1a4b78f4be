"""OpenAI's own Python client against a running Tandem: what its users see, in its own types.

    test_openai_sdk.py --bin FOLDER [--slow] [CASE ...]

Answers are those of models/tandem-tiny (its MODEL_CARD.md). --slow: for instrumented programs,
which get more time. Lines and closing line are as cmocka's."""

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel, ConfigDict, Field

from cases import main
from service import KEY

MODEL = "tandem-tiny"
SUM = [{"role": "user", "content": "What is 12 plus 30?"}]
ANSWER = "12 + 30 = 42."
TOOLS = [{"type": "function",
          "function": {"name": "get_weather",
                       "description": "Get the current weather in a city.",
                       "parameters": {"type": "object",
                                      "properties": {"location": {"type": "string"}},
                                      "required": ["location"]}}}]
WEATHER = [{"role": "user", "content": "Weather in Oslo?"}]
COUNT = [{"role": "user", "content": "Count from 1 to 100."}]
LONG = 8000  # tokens: seconds of work


class Context:
    def __init__(self, service, slow):
        self.service = service
        self.slow = slow
        self.options = {"base_url": f"http://127.0.0.1:{service.ports['router']}/v1",
                        "api_key": KEY, "max_retries": 0, "timeout": service.patience}
        self.client = openai.OpenAI(**self.options)
        print(f"openai {openai.__version__}")

    def close(self):
        self.client.close()

    def chat(self, messages=None, **more):
        return self.client.chat.completions.create(
            model=MODEL, messages=messages or SUM, **{"temperature": 0, **more})


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def refused(kind, call, *, param, code, says):
    """The call raises this very class; its fields tell what was wrong."""
    try:
        call()
    except openai.APIStatusError as e:
        same(type(e), kind)
        same((e.param, e.code), (param, code))
        same(e.type, "invalid_request_error")
        for word in says:
            assert word in e.message, f"{word!r} is not in {e.message!r}"
        return
    raise AssertionError("the call was not refused")


def gather(stream):
    """A stream's parts, put together as the SDK's documentation has its users do."""
    out = {"content": "", "reasoning": "", "calls": {}, "finish": None, "usage": None,
           "roles": [], "pieces": 0, "ids": set()}
    for chunk in stream:
        out["ids"].add(chunk.id)
        if chunk.usage is not None:
            same(chunk.choices, [])
            out["usage"] = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta
            if delta.role:
                out["roles"].append(delta.role)
            if delta.content:
                out["content"] += delta.content
                out["pieces"] += 1
            thought = (delta.model_extra or {}).get("reasoning_content")
            same((delta.model_extra or {}).get("reasoning"), thought)
            out["reasoning"] += thought or ""
            for part in delta.tool_calls or []:
                call = out["calls"].setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
            if choice.finish_reason is not None:
                same(out["finish"], None)
                out["finish"] = choice.finish_reason
    same(len(out["ids"]), 1)
    return out


# ---- chat ----


def test_sdk_chat_whole(c):
    answer = c.chat()
    choice = answer.choices[0]
    same(answer.object, "chat.completion")
    same(answer.model, MODEL)
    same(len(answer.choices), 1)
    same((choice.message.role, choice.message.content), ("assistant", ANSWER))
    same(choice.finish_reason, "stop")
    same(choice.message.tool_calls, None)
    reasoning = choice.message.model_extra["reasoning_content"]
    assert reasoning, "no reasoning"
    same(choice.message.model_extra["reasoning"], reasoning)
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


def test_sdk_chat_stream(c):
    whole = c.chat()
    message = whole.choices[0].message
    got = gather(c.chat(stream=True, stream_options={"include_usage": True}))
    same(got["content"], message.content)
    same(got["reasoning"], message.model_extra["reasoning_content"])
    same((got["finish"], got["roles"]), ("stop", ["assistant"]))
    same(got["usage"].completion_tokens, whole.usage.completion_tokens)
    same(got["usage"].prompt_tokens, whole.usage.prompt_tokens)
    assert got["pieces"] > 3, "the answer came in one piece"
    same(gather(c.chat(stream=True))["usage"], None)


def test_sdk_stream_helper(c):
    """client.chat.completions.stream(): the SDK's own accumulation of a stream."""
    with c.client.chat.completions.stream(model=MODEL, messages=SUM, temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    same(text, ANSWER)
    same((final.choices[0].message.content, final.choices[0].finish_reason), (ANSWER, "stop"))


def test_sdk_reasoning_effort(c):
    used = [c.chat(reasoning_effort=e).usage.completion_tokens for e in ("low", "medium", "high")]
    assert used[0] < used[1] < used[2], used


def test_sdk_length(c):
    answer = c.chat(COUNT, max_completion_tokens=5)
    same((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 5))
    answer = c.chat(COUNT, max_tokens=6)
    same((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 6))


def test_sdk_stop(c):
    answer = c.chat(stop=["never said", " = "])
    same((answer.choices[0].message.content, answer.choices[0].finish_reason), ("12 + 30", "stop"))
    got = gather(c.chat(stop=" = ", stream=True))
    same((got["content"], got["finish"]), ("12 + 30", "stop"))


def test_sdk_seed(c):
    # Weak sampling would say the one right answer whatever the seed: hence no stop tokens.
    def draw(seed):
        answer = c.chat(temperature=1.9, seed=seed, max_tokens=48, extra_body={"ignore_eos": True})
        message = answer.choices[0].message
        return message.model_extra.get("reasoning_content"), message.content

    one = draw(7)
    same(draw(7), one)
    assert any(draw(seed) != one for seed in (8, 9, 10)), "the seed changes nothing"


def test_sdk_logprobs(c):
    choice = c.chat(logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    same("".join(t.token for t in tokens), ANSWER)
    same(b"".join(bytes(t.bytes) for t in tokens).decode(), ANSWER)
    for t in tokens:
        same(len(t.top_logprobs), 3)
        same((t.top_logprobs[0].token, t.top_logprobs[0].logprob), (t.token, t.logprob))
        assert t.logprob <= 0 and t.top_logprobs[1].logprob <= t.logprob
    streamed = []
    for chunk in c.chat(logprobs=True, top_logprobs=3, stream=True):
        for part in chunk.choices:
            if part.logprobs is not None:
                streamed += part.logprobs.content
    same([(t.token, t.logprob) for t in streamed], [(t.token, t.logprob) for t in tokens])
    same(c.chat().choices[0].logprobs, None)


def test_sdk_penalties(c):
    def content(messages, **more):
        return c.chat(messages, max_tokens=200, **more).choices[0].message.content

    same(content(SUM, frequency_penalty=0, presence_penalty=0, logit_bias={}), ANSWER)
    assert content(COUNT, frequency_penalty=2, presence_penalty=2) != content(COUNT)
    # A token that is pushed this far is all there is.
    token = c.client.completions.create(model=MODEL, prompt="x", temperature=0, max_tokens=3,
                                        logit_bias={"65": 100})
    same(len(set(token.choices[0].text)), 1)


def test_sdk_choices(c):
    ask = {"temperature": 1.9, "seed": 7, "max_tokens": 48, "extra_body": {"ignore_eos": True}}

    def words(message):
        return (message.model_extra.get("reasoning_content") or "", message.content or "")

    alone, several = c.chat(**ask), c.chat(n=4, **ask)
    got = [words(choice.message) for choice in several.choices]
    same([choice.index for choice in several.choices], [0, 1, 2, 3])
    same({choice.finish_reason for choice in several.choices}, {"length"})
    same(got[0], words(alone.choices[0].message))
    assert len(set(got)) > 2, got
    same((several.usage.prompt_tokens, several.usage.completion_tokens),
         (alone.usage.prompt_tokens, 4 * 48))
    streamed = [["", ""] for _ in range(4)]
    usage = None
    for chunk in c.chat(n=4, stream=True, stream_options={"include_usage": True}, **ask):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            extra = choice.delta.model_extra or {}
            streamed[choice.index][0] += extra.get("reasoning_content") or ""
            streamed[choice.index][1] += choice.delta.content or ""
    same([tuple(s) for s in streamed], got)
    same(usage.completion_tokens, several.usage.completion_tokens)


# ---- tools ----


def weather_loop(c, call, assistant):
    same((call["name"], json.loads(call["arguments"])), ("get_weather", {"location": "Oslo"}))
    messages = WEATHER + [assistant, {"role": "tool", "tool_call_id": call["id"],
                                      "content": "4 degrees, light rain"}]
    answer = c.chat(messages, tools=TOOLS)
    same(answer.choices[0].message.content, "The weather in Oslo:\n4 degrees, light rain")
    same(answer.choices[0].finish_reason, "stop")


def test_sdk_tools(c):
    choice = c.chat(WEATHER, tools=TOOLS).choices[0]
    same((choice.finish_reason, len(choice.message.tool_calls)), ("tool_calls", 1))
    call = choice.message.tool_calls[0]
    same(call.type, "function")
    weather_loop(c, {"id": call.id, "name": call.function.name,
                     "arguments": call.function.arguments},
                 choice.message)  # the SDK's object as it is: the common way


def test_sdk_tools_stream(c):
    got = gather(c.chat(WEATHER, tools=TOOLS, stream=True))
    same((got["finish"], list(got["calls"])), ("tool_calls", [0]))
    call = got["calls"][0]
    weather_loop(c, call, {"role": "assistant", "tool_calls": [
        {"id": call["id"], "type": "function",
         "function": {"name": call["name"], "arguments": call["arguments"]}}]})
    with c.client.chat.completions.stream(model=MODEL, messages=WEATHER, tools=TOOLS,
                                          temperature=0) as stream:
        final = stream.get_final_completion()
    function = final.choices[0].message.tool_calls[0].function
    same((function.name, json.loads(function.arguments)), ("get_weather", {"location": "Oslo"}))


# ---- structured output ----


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)  # or a model of this size may talk without end
    country: Literal["Peru", "Norway"]
    millions: int


class Lookup(BaseModel):
    """Look something up."""

    key: Literal["north", "south"]
    depth: int


def test_sdk_parse(c):
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Capital of Peru?"}],
           "response_format": City, "max_tokens": 800}
    for seed in range(4):
        choice = c.client.chat.completions.parse(**ask, temperature=1, seed=seed).choices[0]
        same((choice.finish_reason, choice.message.tool_calls), ("stop", None))
        assert isinstance(choice.message.parsed, City), choice.message
        same(json.loads(choice.message.content), choice.message.parsed.model_dump())
    several = c.client.chat.completions.parse(**ask, temperature=1, seed=9, n=3).choices
    assert all(isinstance(choice.message.parsed, City) for choice in several)
    whole = c.client.chat.completions.parse(**ask, temperature=0).choices[0].message
    with c.client.chat.completions.stream(**ask, temperature=0) as stream:
        final = stream.get_final_completion().choices[0].message
    same((final.content, final.parsed), (whole.content, whole.parsed))


def test_sdk_strict_tools(c):
    tool = openai.pydantic_function_tool(Lookup)
    same(tool["function"]["strict"], True)
    for choice in ("required", {"type": "function", "function": {"name": "Lookup"}}):
        for seed in range(3):
            answer = c.client.chat.completions.parse(
                model=MODEL, messages=SUM, tools=[tool], tool_choice=choice, temperature=1,
                seed=seed, max_tokens=400).choices[0]
            same((answer.finish_reason, answer.message.content), ("tool_calls", None))
            call, = answer.message.tool_calls
            same(call.function.name, "Lookup")
            assert isinstance(call.function.parsed_arguments, Lookup), call
    none = c.chat(WEATHER, tools=TOOLS, tool_choice="none")
    same(none.choices[0].message.tool_calls, None)


def test_sdk_schema_errors(c):
    def ask():
        c.chat(response_format={"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "object", "properties": {"p": {"not": {}}}}}})

    refused(openai.BadRequestError, ask, param="response_format.json_schema.schema", code=None,
            says=["not", "#/properties/p"])
    answer = c.chat(response_format={"type": "json_schema", "json_schema": {
        "name": "a", "strict": False, "schema": {"type": "object", "not": {}}}})
    same(answer.choices[0].finish_reason, "stop")


# ---- refusals ----


def test_sdk_errors(c):
    bad = openai.BadRequestError
    refused(bad, lambda: c.chat(max_tokens="5"), param="max_tokens", code=None, says=["a string"])
    refused(bad, lambda: c.chat(temperature=3), param="temperature", code=None, says=["0 and 2"])
    refused(bad, lambda: c.chat(n=9), param="n", code=None, says=["at most 8 answers"])
    refused(bad, lambda: c.chat(n=0, stream=True), param="n", code=None, says=["between 1"])
    refused(bad, lambda: c.chat([{"role": "user", "content": 5}]), param="messages[0].content",
            code=None, says=["a number"])
    unknown = {"model": "gpt-5", "messages": SUM}
    refused(openai.NotFoundError, lambda: c.client.chat.completions.create(**unknown),
            param="model", code="model_not_found", says=["gpt-5", MODEL])


def test_sdk_context_length(c):
    limit = c.client.models.retrieve(MODEL).model_extra["max_model_len"]
    wanted = c.chat().usage.prompt_tokens
    refused(openai.BadRequestError, lambda: c.chat(max_completion_tokens=limit), param="max_tokens",
            code="context_length_exceeded", says=[str(limit), f"a prompt of {wanted}"])
    # A digit is a token.
    long = [{"role": "user", "content": "1 " * limit}]
    refused(openai.BadRequestError, lambda: c.chat(long), param="messages",
            code="context_length_exceeded", says=[str(limit), "tokens long"])


def test_sdk_authentication(c):
    for key in ("none", KEY + "x"):
        with openai.OpenAI(**{**c.options, "api_key": key}) as client:
            ask = {"model": MODEL, "messages": SUM}
            refused(openai.AuthenticationError, lambda: client.chat.completions.create(**ask),
                    param=None, code="invalid_api_key", says=["API key"])
            refused(openai.AuthenticationError, client.models.list,
                    param=None, code="invalid_api_key", says=["not one of"])
    assert KEY not in c.service.log("router"), "a key is in the log"


# ---- other endpoints ----


def test_sdk_models(c):
    same([m.id for m in c.client.models.list()], [MODEL])
    one = c.client.models.retrieve(MODEL)
    same((one.id, one.object), (MODEL, "model"))
    same((type(one.created), one.owned_by), (int, "tandem"))
    try:
        c.client.models.retrieve("gpt-5")
        raise AssertionError("an unknown model was found")
    except openai.NotFoundError as e:
        same(e.code, "model_not_found")


def test_sdk_completions(c):
    ask = {"model": MODEL, "prompt": "What is 12 plus", "max_tokens": 12, "temperature": 0}
    whole = c.client.completions.create(**ask)
    same((whole.object, len(whole.choices)), ("text_completion", 1))
    assert whole.choices[0].text and whole.usage.completion_tokens <= 12
    text, finish, usage = "", None, None
    for chunk in c.client.completions.create(**ask, stream=True,
                                             stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
    same((text, finish), (whole.choices[0].text, whole.choices[0].finish_reason))
    same(usage.total_tokens, whole.usage.total_tokens)


def test_sdk_completion_logprobs(c):
    ask = {"model": MODEL, "prompt": "What is 12 plus", "max_tokens": 8, "temperature": 0,
           "logprobs": 2, "extra_body": {"ignore_eos": True}}
    choice = c.client.completions.create(**ask).choices[0]
    l = choice.logprobs
    same("".join(l.tokens), choice.text)
    same(len({len(l.tokens), len(l.token_logprobs), len(l.top_logprobs), len(l.text_offset)}), 1)
    for token, value, top, at in zip(l.tokens, l.token_logprobs, l.top_logprobs, l.text_offset):
        same((len(top), top[token]), (2, value))
        same(choice.text[at:at + len(token)], token)
    parts = [part.logprobs for chunk in c.client.completions.create(**ask, stream=True)
             for part in chunk.choices if part.logprobs is not None]
    same([t for p in parts for t in p.tokens], l.tokens)
    same([t for p in parts for t in p.text_offset], l.text_offset)
    bare = c.client.completions.create(**{**ask, "logprobs": 0}).choices[0].logprobs
    same([len(top) for top in bare.top_logprobs], [1] * len(l.tokens))


# ---- several at once, and gone ----


def let_go(c, leave):
    """leave() gives up on a long answer; the workers stop well before its end and hold nothing."""
    c.service.wait(c.service.is_empty, "the workers are empty before")
    done = c.service.metric("decode", "vllm:generation_tokens_total")
    leave({"messages": COUNT, "max_tokens": LONG, "extra_body": {"ignore_eos": True}})
    c.service.wait(c.service.is_empty, "the workers are empty after the client left")
    made = c.service.metric("decode", "vllm:generation_tokens_total") - done
    assert made < LONG / 2, f"{made:.0f} tokens were made"
    same(c.chat().choices[0].message.content, ANSWER)


def test_sdk_close_of_a_stream(c):
    def leave(ask):
        with c.chat(**ask, stream=True) as stream:
            for _ in zip(range(3), stream):
                pass
            same(c.service.metric("decode", "vllm:num_requests_running"), 1)

    let_go(c, leave)


def test_sdk_timeout(c):
    def leave(ask):
        try:
            c.chat(**ask, timeout=1 if c.slow else 0.3)
            raise AssertionError("no time-out")
        except openai.APITimeoutError:
            pass

    let_go(c, leave)


def test_sdk_cancel_of_a_task(c):
    async def cancel(ask):
        async with openai.AsyncOpenAI(**c.options) as client:
            task = asyncio.create_task(client.chat.completions.create(model=MODEL, **ask))
            while c.service.metric("decode", "vllm:num_requests_running") == 0:
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()

    let_go(c, lambda ask: asyncio.run(asyncio.wait_for(cancel(ask), c.service.patience)))


def test_sdk_async_parallel(c):
    n = 16
    asks = [{"model": MODEL, "temperature": 1, "seed": i,
             "messages": [{"role": "user", "content": f"What is {i + 3} plus {5 * i + 2}?"}]}
            for i in range(n)]

    def parts(answer):
        message = answer.choices[0].message
        return (message.content, message.model_extra.get("reasoning_content"),
                answer.choices[0].finish_reason, answer.usage.completion_tokens)

    async def together():
        async with openai.AsyncOpenAI(**c.options) as client:
            return await asyncio.gather(*(client.chat.completions.create(**a) for a in asks))

    alone = [parts(c.client.chat.completions.create(**a)) for a in asks]
    assert len(set(alone)) == n
    same([parts(a) for a in asyncio.run(together())], alone)


def test_sdk_nothing_is_left(c):
    c.service.wait(c.service.is_empty, "the workers are empty at the end")
    same(c.service.metric("router", "vllm:num_requests_running"), 0)


if __name__ == "__main__":
    sys.exit(main(globals(), "test_sdk_", Context))
