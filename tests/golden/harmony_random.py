"""Random texts, schemas, tools and conversations for harmony_oracle.py, as request bodies with the
further fields of tests/unit/harmony_fixture.h."""
WORDS = ["the", "quick", "Zürich", "日本語", "a b", "line\nbreak", "tab\t", "😀", "<|end|>", "null",
         "x" * 30, "'s", "123456", "“q”", "  two", "e\u0301", "C:\\dir", '"quoted"', "// no", "\r\n",
         "ﬁ", "🫠🫠", "नमस्ते", "=functions", "to=", "#", "# Tools", "\u00a0", "</s>", "{}",
         "<|start|>system<|message|>", "<|call|>", "<|constrain|>json", "<|channel|>final", "<|return|>",
         "<|endofprompt|>", "<|reserved_200013|>", "👩🏽\u200d🚀", "🏴\u200d☠\ufe0f", "1\ufe0f\u20e3", "กำลังโหลด",
         "สวัสดีครับ", "க்ஷ", "עִבְרִית", "한국어", "\u2028", "\x85", "\x0b", "\ufeff", "\x7f", "\x01"]
NAMES = ["a", "get_time", "add-2", "X", "foo_bar", "search9", "q" * 20, "f", "python2", "Read"]
PROPERTIES = NAMES + ["größe", "a b", "$ref", "", 'q"', "line\nbreak", "<|end|>", "x: string, //"]
DATE = "2025-06-28"


def any_char(r):
    cp = r.randrange(1, 0x110000 - 0x800)
    return chr(cp if cp < 0xd800 else cp + 0x800)


def text(r, most=6):
    if r.random() < 0.03:
        return "".join(any_char(r) for _ in range(r.randint(1, 4 * most)))
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


KEYWORDS = ["type", "description", "title", "default", "enum", "nullable", "examples", "oneOf", "anyOf",
            "items", "properties", "required"]


def schema(r, depth=3):
    """Any mixture of keywords, sensible or not: each rule must win or lose as in the reference."""
    s = {}
    kinds = ["object", "object", "string", "number", "integer", "boolean", "array", "null", "odd"]
    if r.random() < 0.03:  # what pydantic makes of an optional model
        return {"anyOf": [{"$ref": "#/$defs/" + r.choice(NAMES)}, {"type": "null"}], "default": None}
    if r.random() < 0.03:
        return {"$ref": r.choice(["#", "#/$defs/a", "#/definitions/X"]), "description": text(r, 2)}
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
        keys = [r.choice(PROPERTIES) for _ in range(r.randint(0, 4))]
        s["properties"] = {k: schema(r, depth - 1) for k in keys}
        if r.random() < 0.6:
            s["required"] = [r.choice(NAMES) for _ in range(r.randint(0, 3))] + r.choice([[], [3]])
    if depth and r.random() < 0.1 and isinstance(s.get("properties"), dict):  # a schema that is none
        s["properties"][r.choice(NAMES)] = value(r, 1)
    for key in KEYWORDS:
        if r.random() < 0.01:
            s[key] = value(r, 1)
    for key in ("additionalProperties", "$schema", "minimum", "const", "format", "pattern", "allOf",
                "not", "prefixItems", "$defs"):
        if r.random() < 0.03:
            s[key] = value(r, 1)
    if depth and r.random() < 0.05:
        s[r.choice(["$defs", "definitions"])] = {r.choice(NAMES): schema(r, depth - 1)}
    if depth and r.random() < 0.05:
        s[r.choice(["allOf", "prefixItems"])] = [schema(r, depth - 1)]
    items = list(s.items())
    r.shuffle(items)
    return dict(items)


def tool(r):
    f = {"name": r.choice(NAMES)}
    if r.random() < 0.8:
        f["description"] = r.choice(["", "\n", "a\n", "a\r\nb", "a\n\nb", "a\r"]) + text(r, 3)
    if r.random() < 0.9:
        f["parameters"] = schema(r, r.choice([1, 3, 3, 6])) if r.random() < 0.95 else r.choice([{}, None])
    return {"type": "function", "function": f}


def parts(r):
    """A text, or parts of one."""
    if r.random() < 0.8:
        return text(r)
    return [{"type": "text", "text": text(r, 3)} for _ in range(r.randint(1, 3))]


def answer_format(r):
    if r.random() < 0.2:
        return {"type": "json_object"}
    spec = {"name": r.choice(NAMES), "schema": schema(r)}
    if r.random() < 0.5:
        spec["description"] = text(r, 2)
    return {"type": "json_schema", "json_schema": spec}


def conversation(r):
    messages, ids = [], 0
    for _ in range(r.randint(0, 2)):
        messages.append({"role": r.choice(["system", "developer"]), "content": parts(r)})
    for _ in range(r.randint(1, 4)):
        messages.append({"role": "user", "content": parts(r)})
        if r.random() < 0.1:
            messages[-1]["name"] = r.choice(NAMES)
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
            results = [{"role": "tool", "tool_call_id": c["id"], "content": parts(r)} for c in calls]
            r.shuffle(results)
            messages.extend(results)
        if r.random() < 0.7:
            message = {"role": "assistant", "content": parts(r)}
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
    elif "tools" in body and r.random() < 0.1:
        body["tool_choice"] = "required"
    if r.random() < 0.2:
        body["response_format"] = answer_format(r)
    if r.random() < 0.3:
        body["builtin_tools"] = r.choice([["browser"], ["python"], ["python", "browser"]])
    if r.random() < 0.1:
        body["identity"] = text(r, 3)
    if r.random() < 0.1:
        body["cutoff"] = r.choice(["", "2025-01"])
    if r.random() < 0.1:
        body["channels"] = r.choice(["", "analysis, final", "final"])
    return body
