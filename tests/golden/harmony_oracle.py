#!/usr/bin/env python3
"""Holds the Harmony renderer and parser against openai-harmony, the reference.

    harmony_oracle.py DRIVER VOCABULARY [--count 3000] [--seed 1]

DRIVER is the program harmony_driver; VOCABULARY is o200k_base.tiktoken, which openai-harmony is
made to read from the same folder. Needs `pip install openai-harmony==0.0.8`.

Checked on random input:
  * schemas: the developer message of random tools, token by token;
  * conversations: whole prompts, with and without dropping of reasoning, and for training. Where
    our rule for dropping differs from the library's by decision, the messages handed to the library
    are those that our rule keeps;
  * single messages with names, recipients, channels and content types;
  * parsing: random answers that the reference accepts give the same reasoning, content and calls.
"""
import argparse
import json
import os
import random
import subprocess
import sys

WORDS = ["the", "quick", "Zürich", "日本語", "a b", "line\nbreak", "tab\t", "😀", "<|end|>", "null",
         "x" * 30, "'s", "123456", "“q”", "  two", "e\u0301", "C:\\dir", '"quoted"', "// no", "\r\n",
         "ﬁ", "🫠🫠", "नमस्ते", "=functions", "to=", "#", "# Tools", "\u00a0", "</s>", "{}"]
NAMES = ["a", "get_time", "add-2", "X", "foo_bar", "search9", "q" * 20, "f", "python2", "Read"]
DATE = "2025-06-28"


def text(r, most=6):
    return r.choice(["", " ", "\n"]).join(r.choice(WORDS) for _ in range(r.randint(0, most)))


def value(r, depth=2):
    pick = r.randrange(10 if depth else 7)
    if pick < 2:
        return text(r, 2)
    if pick == 2:
        return r.choice([0, 1, -1, 10, 2**53, 2**63, 2**64 - 1, -(2**63), 12345678901234567890123])
    if pick == 3:
        return r.choice([0.0, 1.0, -0.0, 0.1, 1e16, 1e15, 123456.789, 1e-5, 0.0001, 2.5e-8, -1.5,
                         1234567890123456.0, 1e21, 9007199254740993.0])
    if pick == 4:  # few digits: serde_json reads the last digits of longer ones wrong
        return r.randint(1, 10**9) / 10 ** r.randint(0, 12)
    if pick == 5:
        return r.choice([True, False])
    if pick == 6:
        return None
    if pick < 9:
        return [value(r, depth - 1) for _ in range(r.randint(0, 3))]
    return {text(r, 1) or "k": value(r, depth - 1) for _ in range(r.randint(0, 3))}


def schema(r, depth=3):
    """Any mixture of keywords, sensible or not: each rule must win or lose as in the reference."""
    s = {}
    kinds = ["object", "object", "string", "number", "integer", "boolean", "array", "null", "odd"]
    if r.random() < 0.9:
        s["type"] = r.choice(kinds) if depth else r.choice(kinds[2:6])
        if r.random() < 0.12:
            s["type"] = [r.choice(kinds[2:8]) for _ in range(r.randint(0, 3))]
            if r.random() < 0.2:
                s["type"].append(7)
    if r.random() < 0.3:
        s["description"] = text(r, 3) if r.random() < 0.95 else 5
    if r.random() < 0.15:
        s["title"] = text(r, 2)
    if r.random() < 0.2:
        s["default"] = value(r)
    if r.random() < 0.2:
        s["enum"] = [value(r, 0) if r.random() < 0.3 else r.choice(NAMES)
                     for _ in range(r.randint(0, 3))]
    if r.random() < 0.15:
        s["nullable"] = r.choice([True, True, False, "yes"])
    if r.random() < 0.1:
        s["examples"] = [value(r, 0) for _ in range(r.randint(0, 3))]
    if depth and r.random() < 0.15:
        s["oneOf"] = ([schema(r, depth - 1) for _ in range(r.randint(0, 3))]
                      if r.random() < 0.95 else "no list")
        if s["oneOf"] and "description" in s and r.random() < 0.4 and isinstance(s["oneOf"], list):
            s["oneOf"][0]["description"] = s["description"]
    if depth and r.random() < 0.1:
        s["anyOf"] = [schema(r, depth - 1) for _ in range(r.randint(0, 2))]
    if depth and (s.get("type") == "array" or r.random() < 0.05) and r.random() < 0.8:
        s["items"] = schema(r, depth - 1)
    if depth and (s.get("type") == "object" or r.random() < 0.05) and r.random() < 0.9:
        keys = [r.choice(NAMES + ["größe", "a b", "$ref"]) for _ in range(r.randint(0, 4))]
        s["properties"] = {k: schema(r, depth - 1) for k in keys}
        if r.random() < 0.6:
            s["required"] = [r.choice(NAMES) for _ in range(r.randint(0, 3))] + r.choice([[], [3]])
    for key in ("additionalProperties", "$schema", "minimum", "const"):
        if r.random() < 0.05:
            s[key] = value(r, 1)
    items = list(s.items())
    r.shuffle(items)
    return dict(items)


def tool(r):
    f = {"name": r.choice(NAMES)}
    if r.random() < 0.8:
        f["description"] = r.choice(["", "\n", "a\n", "a\r\nb", "a\n\nb", "a\r"]) + text(r, 3)
    if r.random() < 0.9:
        f["parameters"] = schema(r) if r.random() < 0.95 else r.choice([{}, None])
    return {"type": "function", "function": f}


def conversation(r):
    messages, ids = [], 0
    for _ in range(r.randint(0, 2)):
        messages.append({"role": r.choice(["system", "developer"]), "content": text(r)})
    for _ in range(r.randint(1, 4)):
        messages.append({"role": "user", "content": text(r)})
        for _ in range(r.randint(0, 2)):
            calls = []
            for _ in range(r.randint(1, 3)):
                calls.append({"id": f"c{ids}", "type": "function", "function": {
                    "name": r.choice(NAMES), "arguments": r.choice(["{}", "", '{"a": 1}', text(r)])}})
                ids += 1
            message = {"role": "assistant", "tool_calls": calls}
            if r.random() < 0.5:
                message["content"] = text(r)
            if r.random() < 0.7:
                message[r.choice(["reasoning", "reasoning_content"])] = text(r)
            messages.append(message)
            results = [{"role": "tool", "tool_call_id": c["id"], "content": text(r)} for c in calls]
            r.shuffle(results)
            messages.extend(results)
        if r.random() < 0.7:
            message = {"role": "assistant", "content": text(r)}
            if r.random() < 0.6:
                message["reasoning"] = text(r)
            messages.append(message)
        if r.random() < 0.1:
            messages.append({"role": r.choice(["system", "developer"]), "content": text(r)})
    body = {"messages": messages, "reasoning_effort": r.choice(["low", "medium", "high"])}
    if r.random() < 0.8:
        body["date"] = DATE
    if r.random() < 0.6:
        body["tools"] = [tool(r) for _ in range(r.randint(1, 3))]
    if r.random() < 0.1:
        body["tool_choice"] = "none"
    return body


class Reference:
    def __init__(self, vocabulary):
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = os.path.dirname(os.path.abspath(vocabulary))
        import openai_harmony as oh
        self.oh = oh
        self.enc = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)

    def developer(self, instructions, tools):
        oh, dev = self.oh, self.oh.DeveloperContent.new()
        if instructions:
            dev = dev.with_instructions(instructions)
        if tools:
            dev = dev.with_function_tools([
                oh.ToolDescription.new(t["function"]["name"], t["function"].get("description") or "",
                                       t["function"].get("parameters")) for t in tools])
        return oh.Message.from_role_and_content(oh.Role.DEVELOPER, dev)

    def messages(self, body, keep_analysis):
        """The body as Harmony messages, by the mapping and the dropping rule of our own."""
        oh = self.oh
        tools = [] if body.get("tool_choice") == "none" else body.get("tools", [])
        system = oh.SystemContent.new().with_reasoning_effort(
            {"low": oh.ReasoningEffort.LOW, "medium": oh.ReasoningEffort.MEDIUM,
             "high": oh.ReasoningEffort.HIGH}[body["reasoning_effort"]])
        if body.get("date"):
            system = system.with_conversation_start_date(body["date"])
        out = [oh.Message.from_role_and_content(oh.Role.SYSTEM, system)]
        chat = list(body["messages"])
        lead = []
        while chat and chat[0]["role"] in ("system", "developer"):
            lead.append(chat.pop(0)["content"])
        instructions = "\n\n".join(t for t in lead if t)
        if instructions or tools:
            out.append(self.developer(instructions, tools))

        def final(m):
            return m["role"] == "assistant" and m.get("content") and not m.get("tool_calls")

        while chat and chat[-1]["role"] not in ("user", "tool") and not (
                chat[-1].get("content") or chat[-1].get("tool_calls")
                or chat[-1].get("reasoning") or chat[-1].get("reasoning_content")):
            chat.pop()  # says nothing
        finals = [i for i, m in enumerate(chat) if final(m)]
        keep = 0
        if finals and finals[-1] == len(chat) - 1:
            users = [i for i, m in enumerate(chat) if m["role"] == "user"]
            keep = users[-1] + 1 if users else 0
        elif finals:
            keep = finals[-1] + 1
        if keep_analysis:
            keep = 0

        names, order, i = {}, {}, 0
        while i < len(chat):
            m = chat[i]
            if m["role"] in ("system", "developer"):
                if m["content"]:
                    out.append(self.developer(m["content"], []))
            elif m["role"] == "user":
                out.append(oh.Message.from_role_and_content(oh.Role.USER, m["content"]))
            elif m["role"] == "assistant":
                reasoning = m.get("reasoning") or m.get("reasoning_content")
                if reasoning and i >= keep:
                    out.append(oh.Message.from_role_and_content(
                        oh.Role.ASSISTANT, reasoning).with_channel("analysis"))
                if m.get("content"):
                    out.append(oh.Message.from_role_and_content(
                        oh.Role.ASSISTANT, m["content"]).with_channel(
                            "commentary" if m.get("tool_calls") else "final"))
                for c in m.get("tool_calls", []):
                    names[c["id"]] = "functions." + c["function"]["name"]
                    order[c["id"]] = len(order)
                    out.append(oh.Message.from_role_and_content(
                        oh.Role.ASSISTANT, c["function"]["arguments"]).with_channel("commentary")
                        .with_recipient(names[c["id"]]).with_content_type("<|constrain|>json"))
            else:
                j = i
                while j < len(chat) and chat[j]["role"] == "tool":
                    j += 1
                for t in sorted(chat[i:j], key=lambda t: order[t["tool_call_id"]]):
                    out.append(oh.Message.from_author_and_content(
                        oh.Author.new(oh.Role.TOOL, names[t["tool_call_id"]]), t["content"])
                        .with_channel("commentary").with_recipient("assistant"))
                i = j
                continue
            i += 1
        return out

    def render(self, body, keep_analysis, training):
        config = self.oh.RenderConversationConfig(auto_drop_analysis=False)
        conv = self.oh.Conversation.from_messages(self.messages(body, keep_analysis))
        if training:
            return self.enc.render_conversation_for_training(conv, config=config)
        return self.enc.render_conversation_for_completion(conv, self.oh.Role.ASSISTANT,
                                                           config=config)

    def message(self, m):
        oh = self.oh
        role, _, name = m["author"].partition(":")
        if role in ("user", "assistant"):
            author = oh.Author.new(oh.Role(role), name) if name else oh.Author(role=oh.Role(role))
        else:
            author = oh.Author.new(oh.Role.TOOL, m["author"])
        message = oh.Message.from_author_and_content(author, m["content"])
        for key in ("recipient", "channel", "content_type"):
            if m.get(key):
                message = getattr(message, "with_" + key)(m[key])
        return self.enc.render(message)


def answer(r, ref):
    """Tokens of a well-formed answer, and what it says."""
    def enc(s):
        return ref.enc.encode(s, allowed_special="all")

    reasoning, content, calls, spell = [], [], [], ""
    declared = sorted(set(NAMES))
    for i in range(r.randint(1, 4)):
        body = text(r, 8).replace("<|end|>", "<end>")
        kind = r.randrange(4)
        start = "<|start|>assistant" if i else ""
        if kind == 0:
            spell += f"{start}<|channel|>analysis<|message|>{body}<|end|>"
            reasoning.append(body)
        elif kind == 1:
            spell += f"{start}<|channel|>commentary<|message|>{body}<|end|>"
            content.append(body)
        else:
            name, kind = r.choice(declared), r.choice([" <|constrain|>json", " json", ""])
            body = r.choice(["{}", '{"a":"é"}', '{"x": [1, 2]}'])
            where = (f" to=functions.{name}<|channel|>commentary{kind}" if r.random() < 0.5
                     else f"<|channel|>commentary to=functions.{name}{kind}")
            spell += f"{start}{where}<|message|>{body}<|call|>"
            calls.append({"name": name, "arguments": body})
            return enc(spell), declared, reasoning, content, calls
    body = text(r, 8).replace("<|end|>", "<end>")
    spell += f"<|start|>assistant<|channel|>final<|message|>{body}<|return|>"
    content.append(body)
    return enc(spell), declared, reasoning, content, calls


def joined(parts):
    return "\n".join(p for p in parts if p)


def reference_parse(ref, tokens):
    """What the reference makes of the tokens, by the routing of the HTTP mapping."""
    reasoning, content, calls = [], [], []
    for m in ref.enc.parse_messages_from_completion_tokens(tokens, ref.oh.Role.ASSISTANT):
        body = "".join(p.text for p in m.content)
        if m.recipient and m.recipient.startswith("functions."):
            calls.append({"name": m.recipient[len("functions."):], "arguments": body})
        elif m.channel == "analysis":
            reasoning.append(body)
        else:
            content.append(body)
    return reasoning, content, calls


class Driver:
    def __init__(self, program, vocabulary):
        self.p = subprocess.Popen([program, vocabulary], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)

    def ask(self, **line):
        self.p.stdin.write((json.dumps(line) + "\n").encode())
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


def differ(ref, what, line, ours, theirs):
    print(f"{what} differs for {json.dumps(line)}", file=sys.stderr)
    if isinstance(theirs, list) and isinstance(ours.get("tokens"), list):
        print("ours:  ", ref.enc.decode(ours["tokens"]), file=sys.stderr)
        print("theirs:", ref.enc.decode(theirs), file=sys.stderr)
        print(ours["tokens"], theirs, sep="\n", file=sys.stderr)
    else:
        print("ours:  ", ours, "\ntheirs:", theirs, file=sys.stderr)
    sys.exit(1)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("driver")
    args.add_argument("vocabulary")
    args.add_argument("--count", type=int, default=3000)
    args.add_argument("--seed", type=int, default=1)
    a = args.parse_args()
    r, ref, driver = random.Random(a.seed), Reference(a.vocabulary), Driver(a.driver, a.vocabulary)

    for _ in range(a.count):
        body = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "medium",
                "tools": [tool(r) for _ in range(r.randint(1, 3))]}
        ours, theirs = driver.ask(op="render", **body), ref.render(body, False, False)
        if ours.get("tokens") != theirs:
            differ(ref, "schema", body, ours, theirs)
    for _ in range(a.count):
        body, keep, training = conversation(r), r.random() < 0.3, r.random() < 0.3
        ours = driver.ask(op="render", keep_analysis=keep, training=training, **body)
        theirs = ref.render(body, keep, training)
        if ours.get("tokens") != theirs:
            differ(ref, "conversation", {"keep": keep, "training": training, **body}, ours, theirs)
    for _ in range(a.count // 4):
        m = {"author": r.choice(["user", "user:bob", "assistant", "functions.x", "python"]),
             "content": text(r), "channel": r.choice(["", "analysis", "final", "commentary"]),
             "recipient": r.choice(["", "functions.add", "browser.search", "assistant"]),
             "content_type": r.choice(["", "json", "code", "<|constrain|>json", "<|constrain|>"])}
        call = m["author"] == "assistant" and m["recipient"]
        ours = driver.ask(op="message", end="<|call|>" if call else "<|end|>", **m)
        if ours.get("tokens") != ref.message(m):
            differ(ref, "message", m, ours, ref.message(m))
    for _ in range(a.count):
        tokens, declared, reasoning, content, calls = answer(r, ref)
        if reference_parse(ref, tokens) != (reasoning, content, calls):
            sys.exit(f"the generator and the reference disagree: {ref.enc.decode(tokens)}")
        ours = driver.ask(op="parse", tokens=tokens, declared=declared)
        theirs = {"reasoning": joined(reasoning), "content": joined(content), "calls": calls,
                  "finish_reason": "tool_calls" if calls else "stop"}
        if ours != theirs:
            differ(ref, "parse", ref.enc.decode(tokens), ours, theirs)
    print(f"{a.count} schemas, {a.count} conversations, {a.count // 4} messages and {a.count} "
          f"answers agree with openai-harmony (seed {a.seed})")


main()
