"""Harmony rendering for the training data of tandem-tiny.

A conversation in Chat Completions form (messages, tools, effort, date) becomes a list of
segments, each either one control token or a run of ordinary text. Text is never scanned for
control tokens: a user who types "<|end|>" gets ordinary characters.
"""

import json

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
FUNCTIONS_LINE = "Calls to these tools must go to the commentary channel: 'functions'."


def special(name):
    return (True, "<|%s|>" % name)


def text(value):
    return (False, value)


START, END, MESSAGE = special("start"), special("end"), special("message")
CHANNEL, CONSTRAIN = special("channel"), special("constrain")
CALL, RETURN = special("call"), special("return")


def system_text(effort, date, has_tools, identity=IDENTITY):
    head = identity + "\nKnowledge cutoff: 2024-06"
    if date:
        head += "\nCurrent date: " + date
    tail = CHANNELS + ("\n" + FUNCTIONS_LINE if has_tools else "")
    return "\n\n".join([head, "Reasoning: " + effort, tail])


def type_text(schema, indent=""):
    """TypeScript form of a JSON schema; covers the schemas that the data generator makes."""
    kind = schema.get("type")
    if kind == "object":
        lines = ["{"]
        if schema.get("description"):
            lines = [indent + "// " + schema["description"], "{"]
        required = schema.get("required", [])
        for name, prop in schema.get("properties", {}).items():
            if prop.get("description"):
                lines.append(indent + "// " + prop["description"])
            line = indent + name + ("" if name in required else "?") + ": "
            line += type_text(prop, indent + "    ") + ","
            if "default" in prop:
                value = prop["default"]
                if isinstance(value, str) and "enum" in prop:
                    line += " // default: " + value
                else:
                    line += " // default: " + json.dumps(value, separators=(",", ":"))
            lines.append(line)
        lines.append(indent + "}")
        return "\n".join(lines)
    if kind == "string":
        if schema.get("enum"):
            return " | ".join('"%s"' % value for value in schema["enum"])
        return "string"
    if kind in ("number", "integer"):
        return "number"
    if kind == "boolean":
        return "boolean"
    if kind == "array":
        return type_text(schema["items"], indent) + "[]" if "items" in schema else "Array<any>"
    return "any"


def tools_text(tools):
    lines = ["## functions", "", "namespace functions {", ""]
    for tool in tools:
        function = tool["function"]
        if function.get("description"):
            lines += ["// " + line for line in function["description"].splitlines()]
        if function.get("parameters") is None:
            lines.append("type %s = () => any;" % function["name"])
        else:
            lines.append("type %s = (_: %s) => any;" % (function["name"], type_text(function["parameters"])))
        lines.append("")
    lines.append("} // namespace functions")
    return "# Tools\n\n" + "\n".join(lines)


def developer_text(instructions, tools):
    parts = []
    if instructions:
        parts.append("# Instructions\n\n" + instructions)
    if tools:
        parts.append(tools_text(tools))
    return "\n\n".join(parts)


def plain_message(role, content):
    return [START, text(role), MESSAGE, text(content), END]


def render_prompt(conv):
    """Segments of the prompt, ending with <|start|>assistant."""
    tools = conv.get("tools") or []
    messages = list(conv["messages"])
    segments = []
    if conv.get("effort"):
        identity = conv.get("identity", IDENTITY)
        segments += plain_message("system", system_text(conv["effort"], conv.get("date"), bool(tools), identity))
    instructions = []
    while messages and messages[0]["role"] in ("system", "developer"):
        instructions.append(messages.pop(0)["content"])
    if instructions or tools:
        segments += plain_message("developer", developer_text("\n\n".join(instructions), tools))

    finals = [i for i, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls")]
    last_final = finals[-1] if finals else -1
    names = {}
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            segments += plain_message("user", message["content"])
        elif role in ("system", "developer"):
            segments += plain_message("developer", developer_text(message["content"], []))
        elif role == "tool":
            author = "functions." + names[message["tool_call_id"]]
            segments += [START, text(author), text(" to=assistant"), CHANNEL, text("commentary")]
            segments += [MESSAGE, text(message["content"]), END]
        else:
            if message.get("reasoning") and index > last_final:
                segments += [START, text("assistant"), CHANNEL, text("analysis"), MESSAGE]
                segments += [text(message["reasoning"]), END]
            if message.get("content"):
                channel = "commentary" if message.get("tool_calls") else "final"
                segments += [START, text("assistant"), CHANNEL, text(channel), MESSAGE]
                segments += [text(message["content"]), END]
            for call in message.get("tool_calls") or []:
                function = call["function"]
                names[call["id"]] = function["name"]
                segments += [START, text("assistant"), text(" to=functions." + function["name"])]
                segments += [CHANNEL, text("commentary"), text(" "), CONSTRAIN, text("json")]
                segments += [MESSAGE, text(function["arguments"]), CALL]
    return segments + [START, text("assistant")]


def render_completion(target):
    """Segments that the model has to write: analysis, then a final answer or a call."""
    segments = [CHANNEL, text("analysis"), MESSAGE, text(target["analysis"]), END, START, text("assistant")]
    if "call" in target:
        name, arguments = target["call"]
        segments += [CHANNEL, text("commentary"), text(" to=functions." + name), text(" ")]
        return segments + [CONSTRAIN, text("json"), MESSAGE, text(arguments), CALL]
    return segments + [CHANNEL, text("final"), MESSAGE, text(target["final"]), RETURN]


def to_text(segments):
    return "".join(value for _, value in segments)
