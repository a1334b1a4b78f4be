#!/usr/bin/env python3
"""Holds the Harmony renderer and parser against openai-harmony, the reference.

    harmony_oracle.py DRIVER VOCABULARY [--count 5000] [--seed 1] [--only "answer 17"]

DRIVER is the program harmony_driver; VOCABULARY is o200k_base.tiktoken, which openai-harmony is
made to read from the same folder. Run it through oracle.sh, which gets both.

Checked on random input, --count cases of each kind:
  schema        the developer message of random tools, token by token;
  conversation  whole prompts, with built-in tools, answers' formats, other identities and channels,
                with and without dropping of reasoning, and for training. Where our rule for dropping differs from the
                library's by decision, the messages handed to the library are those that ours keeps;
  message       single messages with names, recipients, channels and content types;
  answer        well-formed answers, some of them cut, at every token and at their end;
  mutant        answers with tokens lost, repeated, exchanged and added, at every token for as long
                as the reference accepts them and reads their headers as the format means them.

A difference is reported with its case, which --only runs alone under the same seed.
"""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import time

import harmony_trace
from harmony_random import conversation, text, tool

class Reference:
    def __init__(self, vocabulary):
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = os.path.dirname(os.path.abspath(vocabulary))
        import openai_harmony as oh
        self.oh = oh
        self.enc = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)
        self.builtin = {"browser": oh.ToolNamespaceConfig.browser(),
                        "python": oh.ToolNamespaceConfig.python()}

    def system(self, body):
        oh = self.oh
        system = oh.SystemContent.new().with_reasoning_effort(
            {"low": oh.ReasoningEffort.LOW, "medium": oh.ReasoningEffort.MEDIUM,
             "high": oh.ReasoningEffort.HIGH}[body["reasoning_effort"]])
        system.conversation_start_date = body.get("date") or None
        system.model_identity = body.get("identity", system.model_identity) or None
        system.knowledge_cutoff = body.get("cutoff", system.knowledge_cutoff) or None
        for name in body.get("builtin_tools", []):
            system = system.with_tools(self.builtin[name])
        if "channels" in body:
            system = system.with_required_channels([c for c in body["channels"].split(", ") if c])
        return oh.Message.from_role_and_content(oh.Role.SYSTEM, system)

    def developer(self, instructions, tools):
        oh, dev = self.oh, self.oh.DeveloperContent.new()
        if instructions:
            dev = dev.with_instructions(instructions)
        if tools:
            dev = dev.with_function_tools([
                oh.ToolDescription.new(t["function"]["name"], t["function"].get("description") or "",
                                       t["function"].get("parameters")) for t in tools])
        return oh.Message.from_role_and_content(oh.Role.DEVELOPER, dev)

    def compact(self, value):
        """JSON as the library spells it, which it does after "default:"."""
        message = self.developer("", [{"function": {"name": "f", "parameters": {
            "type": "object", "properties": {"x": {"type": "number", "default": value}}}}}])
        shown = self.enc.decode(self.enc.render(message))
        return shown[shown.index("// default: ") + 12:shown.rindex("\n}) => any;")]

    def with_format(self, message, wanted):
        """The library has no answers' formats: a section at the end of the text, as its guide has it."""
        spec = wanted.get("json_schema", {"name": "json_object", "schema": {"type": "object"}})
        shown = self.enc.decode(self.enc.render(message))
        shown = shown[len("<|start|>developer<|message|>"):-len("<|end|>")]
        shown += ("\n\n" if shown else "") + f"# Response Formats\n\n## {spec['name']}\n\n"
        if spec.get("description"):
            shown += f"// {spec['description']}\n"
        return self.oh.Message.from_role_and_content(self.oh.Role.DEVELOPER,
                                                     shown + self.compact(spec["schema"]))

    def messages(self, body, keep_analysis):
        """The body as Harmony messages, by the mapping and the dropping rule of our own."""
        oh = self.oh
        tools = [] if body.get("tool_choice") == "none" else body.get("tools", [])
        out = [self.system(body)]
        chat = [{**m, "content": "".join(p["text"] for p in m["content"])}
                if isinstance(m.get("content"), list) else m for m in body["messages"]]
        lead = []
        while chat and chat[0]["role"] in ("system", "developer"):
            lead.append(chat.pop(0)["content"])
        instructions = "\n\n".join(t for t in lead if t)
        if instructions or tools:
            out.append(self.developer(instructions, tools))
        elif "response_format" in body:
            out.append(self.developer("", []))

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
        messages = self.messages(body, keep_analysis)
        conv = self.oh.Conversation.from_messages(messages)
        if training:
            tokens = self.enc.render_conversation_for_training(conv, config=config)
        else:
            tokens = self.enc.render_conversation_for_completion(conv, self.oh.Role.ASSISTANT,
                                                                 config=config)
        if "response_format" in body:  # now: the system message looks for tools in the one without
            plain = self.enc.render(messages[1])
            at = len(self.enc.render(messages[0]))
            while tokens[at:at + len(plain)] != plain:
                at += 1
            more = self.with_format(messages[1], body["response_format"])
            tokens[at:at + len(plain)] = self.enc.render(more)
        return tokens

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


class Driver:
    def __init__(self, program, vocabulary):
        self.p = subprocess.Popen([program, vocabulary], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)

    def ask(self, **line):
        self.p.stdin.write((json.dumps(line) + "\n").encode())
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


class Difference(Exception):
    pass


def compare(ref, given, ours, theirs):
    if ours.get("tokens") == theirs:
        return
    shown = [f"given:   {json.dumps(given)}"]
    for name, tokens in (("ours", ours.get("tokens")), ("theirs", theirs)):
        shown.append(f"{name + ':':8} {ours if tokens is None else ref.enc.decode(tokens)}")
        shown.append(f"         {tokens}")
    raise Difference("\n".join(shown))


def schema_case(r, ref, driver):
    body = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "medium",
            "tools": [tool(r) for _ in range(r.randint(1, 3))]}
    compare(ref, body, driver.ask(op="render", **body), ref.render(body, False, False))


def conversation_case(r, ref, driver):
    body, keep, training = conversation(r), r.random() < 0.3, r.random() < 0.3
    compare(ref, {"keep_analysis": keep, "training": training, **body},
            driver.ask(op="render", keep_analysis=keep, training=training, **body),
            ref.render(body, keep, training))


def message_case(r, ref, driver):
    m = {"author": r.choice(["user", "user:bob", "assistant", "functions.x", "python"]),
         "content": text(r), "channel": r.choice(["", "analysis", "final", "commentary"]),
         "recipient": r.choice(["", "functions.add", "browser.search", "assistant"]),
         "content_type": r.choice(["", "json", "code", "<|constrain|>json", "<|constrain|>"])}
    call = m["author"] == "assistant" and m["recipient"]
    compare(ref, m, driver.ask(op="message", end="<|call|>" if call else "<|end|>", **m),
            ref.message(m))


def answer_case(r, ref, driver):
    tokens, declared = harmony_trace.answer(r, ref)
    problem, outcome = harmony_trace.compare(ref, driver, tokens, declared)
    if problem is None and outcome != "whole":
        problem = f"a well-formed answer is {outcome}: {ref.enc.decode(tokens)!r}"
    if problem:
        raise Difference(problem)


def mutant_case(r, ref, driver):
    tokens, declared = harmony_trace.mutant(r, ref)
    problem, outcome = harmony_trace.compare(ref, driver, tokens, declared)
    if problem:
        raise Difference(problem)
    return outcome


CASES = {"schema": schema_case, "conversation": conversation_case, "message": message_case,
         "answer": answer_case, "mutant": mutant_case}


def main():
    args = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("driver")
    args.add_argument("vocabulary")
    args.add_argument("--count", type=int, default=5000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--only", help="kinds separated by commas, or a kind and a number")
    a = args.parse_args()
    ref, driver = Reference(a.vocabulary), Driver(a.driver, a.vocabulary)
    only = (a.only or "").split()

    for kind, case in CASES.items():
        if only and kind not in only[0].split(","):
            continue
        start, outcomes = time.time(), collections.Counter()
        for i in [int(only[1])] if len(only) > 1 else range(a.count):
            r = random.Random(f"{a.seed} {kind} {i}")
            try:
                outcomes[case(r, ref, driver)] += 1
            except Difference as e:
                sys.exit(f"differs from openai-harmony: --seed {a.seed} --only '{kind} {i}'\n{e}")
        note = (f" ({outcomes['whole']} to their end, {outcomes['refused']} until the reference "
                f"refused them, {outcomes['decided']} until ours read on by decision)"
                if kind == "mutant" else "")
        print(f"  equal: {outcomes.total()} of kind {kind}{note}, in {time.time() - start:.1f} s")
    print(f"[       OK ] harmony_oracle {a.only or ''} (seed {a.seed})")


main()
