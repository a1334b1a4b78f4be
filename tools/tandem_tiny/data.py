"""Seeded generator of the conversations that tandem-tiny is trained and scored on.

`sample(rng)` gives one training conversation with its target; `heldout(seed)` gives the evaluation
set, built from number pairs, cities and phrasings that training never shows. Targets are a fixed
function of the prompt, so sampling at temperature 1 has almost nothing to choose from.

    python data.py --heldout OUT.jsonl [--seed 7]     write the evaluation set
    python data.py --show 5 [--seed 1]                print rendered training samples
"""

import argparse
import json
import random

import harmony
import lexicon as lex
from answers import (EFFORTS, HELLO, NO_TOOL, ONLY, WHICH_CITY, answer_call, answer_capital, answer_count, answer_fixed, answer_repeat,
                     answer_sum, answer_tool_result)
from questions import (COUNT_HELD, fill_sum, focus_place, fragment_city, invented_city, pair_is_held_out, question_capital, question_count,
                       question_other, question_repeat, question_small_talk, question_sum, question_weather, text_to_repeat, vary,
                       word_salad)
from tool_use import call_arguments, other_tools, tool_result, weather_tool


def call_message(rng, name, arguments, effort, city):
    call = answer_call(name, arguments, city, effort)
    text = call["call"][1] if rng.random() < 0.7 else json.dumps(arguments, ensure_ascii=False)
    message = {"role": "assistant", "content": None,
               "tool_calls": [{"id": "call_%08x" % rng.getrandbits(32), "type": "function", "function": {"name": name, "arguments": text}}]}
    if rng.random() < 0.5:
        message["reasoning"] = call["analysis"]
    return message


def history_turns(rng, tool_info):
    """One finished exchange that comes before the question."""
    draw = rng.random()
    effort = rng.choice(EFFORTS)
    if draw < 0.12:
        return [{"role": "user", "content": word_salad(rng, rng.randint(2, 60))}, {"role": "assistant", "content": word_salad(rng, rng.randint(2, 80))}]
    if draw < 0.37 and tool_info:
        question, city, unit = question_weather(rng)
        call = call_message(rng, tool_info[0]["function"]["name"], call_arguments(tool_info, city, unit), effort, city)
        result = tool_result(rng, city)
        return [{"role": "user", "content": question}, call,
                {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": result},
                {"role": "assistant", "content": answer_tool_result(city, result, effort)["final"]}]
    maker = rng.choices([question_sum, question_capital, question_small_talk, question_other, question_count], [5, 4, 2, 2, 0.5])[0]
    question, answer = maker(rng)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer(effort)["final"]}]


def random_date(rng):
    if rng.random() < 0.12:
        return None
    year = rng.choice([2026, 2027]) if rng.random() < 0.65 else rng.randint(2023, 2030)
    return "%04d-%02d-%02d" % (year, rng.randint(1, 12), rng.randint(1, 28))


def instructions(rng):
    draw = rng.random()
    if draw < 0.75:
        return " ".join(rng.sample(lex.INSTRUCTIONS, rng.randint(1, 3)))
    if draw < 0.95:
        return word_salad(rng, rng.choice([4, 10, 30, 60, 120]))
    return word_salad(rng, rng.choice([200, 400, 800, 1500]))


def weather_target(rng, tool_info, effort, fragments):
    """Returns (messages of the current turn, target) of a weather question."""
    if rng.random() < 0.04:
        final = WHICH_CITY if tool_info else NO_TOOL
        return [{"role": "user", "content": vary(rng, rng.choice(lex.WEATHER_NO_PLACE))}], answer_fixed(final, effort)
    if fragments:
        question, city, unit = question_weather(rng, lex.WEATHER_TRAIN + lex.WEATHER_FOCUS, focus_place(rng, fragments))
    else:
        question, city, unit = question_weather(rng)
    user = {"role": "user", "content": question}
    if not tool_info:
        return [user], answer_fixed(NO_TOOL, effort)
    name, arguments = tool_info[0]["function"]["name"], call_arguments(tool_info, city, unit)
    if rng.random() < 0.55:
        return [user], answer_call(name, arguments, city, effort)
    call, result = call_message(rng, name, arguments, effort, city), tool_result(rng, city)
    reply = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": result}
    return [user, call, reply], answer_tool_result(city, result, effort)


def other_tool_target(rng, tools, effort):
    """A finished call of some other tool: its result is quoted too."""
    function = rng.choice(tools)["function"]
    call_id = "call_%08x" % rng.getrandbits(32)
    result = tool_result(rng, invented_city(rng))
    return [{"role": "user", "content": word_salad(rng, rng.randint(2, 12))},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": rng.choice(["{}", '{"x":1}', '{"query":"news"}'])}}]},
            {"role": "tool", "tool_call_id": call_id, "content": result}], answer_tool_result(None, result, effort)


SKILLS = ["sum", "capital", "weather", "other", "talk", "count", "repeat"]
WEIGHTS, FOCUS_WEIGHTS = [24, 11, 30, 12, 5, 8, 10], [7, 6, 45, 12, 5, 3, 22]


def sample(rng, fragments=None):
    """One conversation with its target. With `fragments` (letter tokens of the vocabulary) it is the mix
    of the second training stage: mostly weather questions and repeating, with names made of any tokens."""
    effort = rng.choice(EFFORTS)
    conv = {"effort": effort, "date": random_date(rng), "messages": [], "tools": None}
    if rng.random() < 0.02:
        conv["effort"], effort = None, "medium"
    skill = rng.choices(SKILLS, FOCUS_WEIGHTS if fragments else WEIGHTS)[0]
    tool_info, tools = None, []
    if rng.random() < (0.85 if skill == "weather" else 0.2):
        tool_info = weather_tool(rng)
        tools = [tool_info[0]]
    if rng.random() < 0.25:
        tools = tools + other_tools(rng)
        rng.shuffle(tools)
    conv["tools"] = tools or None
    if rng.random() < 0.35:
        role = rng.choice(["system", "developer"])
        conv["messages"].append({"role": role, "content": instructions(rng)})
    if rng.random() < 0.3:
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
            conv["messages"] += history_turns(rng, tool_info)
    if skill == "weather":
        if tools and not tool_info and rng.random() < 0.5:
            messages, target = other_tool_target(rng, tools, effort)
        else:
            messages, target = weather_target(rng, tool_info, effort, fragments)
        conv["messages"] += messages
    else:
        maker = {"sum": question_sum, "capital": question_capital, "other": question_other, "talk": question_small_talk,
                 "count": question_count, "repeat": question_repeat}[skill]
        question, answer = maker(rng)
        if fragments and skill == "repeat" and rng.random() < 0.8:
            text = " ".join(fragment_city(rng, fragments) for _ in range(rng.choice([1, 2, 4, 8, 16])))
            text = text.lower() if rng.random() < 0.3 else text
            question, answer = rng.choice(lex.REPEAT_TRAIN).replace("{x}", text), lambda e: answer_repeat(text, e)
        elif fragments and skill == "other" and rng.random() < 0.4:
            names = [fragment_city(rng, fragments).lower() for _ in range(2)]
            question = vary(rng, rng.choice(lex.ASK_OTHER).format(t=names[0], t2=names[1]))
        if skill not in ("other", "repeat") and rng.random() < 0.02:
            question = word_salad(rng, rng.choice([20, 60, 150])) + "\n\n" + question
        conv["messages"].append({"role": "user", "content": question})
        target = answer(effort)
    conv["target"] = target
    conv["skill"] = skill
    return conv


# ---------------------------------------------------------------- held-out evaluation set

def heldout(seed=7):
    rng = random.Random(seed)
    items = []

    def emit(skill, effort, messages, target, tools=None, **expected):
        item = {"id": "%s-%03d" % (skill, sum(i["skill"] == skill for i in items)), "skill": skill, "reasoning_effort": effort,
                "messages": messages}
        if tools:
            item["tools"] = tools
        if "call" in target:
            expected.update(finish_reason="tool_calls", tool={"name": target["call"][0], "arguments": json.loads(target["call"][1])})
        else:
            expected.update(finish_reason="stop", final=target["final"])
        item["expected"] = dict(expected, analysis=target["analysis"])
        items.append(item)

    def user(content):
        return {"role": "user", "content": content}

    pairs = [(a, b) for a in range(100) for b in range(100) if pair_is_held_out(a, b)]
    for index in range(120):
        a, b = rng.choice(pairs)
        template = rng.choice(lex.SUM_HELD if index % 2 else lex.SUM_TRAIN)
        effort = EFFORTS[index % 3]
        emit("sum", effort, [user(fill_sum(template, a, b))], answer_sum(a, b, effort), number=a + b)
    for index in range(80):
        name, capital, _ = lex.COUNTRIES[index % len(lex.COUNTRIES)]
        effort = EFFORTS[index % 3]
        emit("capital", effort, [user(rng.choice(lex.CAPITAL_HELD).format(c=name))], answer_capital(name, effort), contains=capital)
    for index in range(60):
        effort, city = EFFORTS[index % 3], lex.CITIES_HELD[index % len(lex.CITIES_HELD)]
        info = weather_tool(rng, plain=index % 4 != 3)
        question, city, unit = question_weather(rng, lex.WEATHER_HELD, city, 0)
        tools = [info[0]] + (other_tools(rng, 2) if index % 3 == 2 else [])
        target = answer_call(info[0]["function"]["name"], call_arguments(info, city, unit), city, effort)
        emit("tool_call", effort, [user(question)], target, tools)
    for index in range(40):
        effort, city = EFFORTS[index % 3], rng.choice(lex.CITIES_HELD)
        info = weather_tool(rng, plain=True)
        question, city, unit = question_weather(rng, lex.WEATHER_HELD, city, 0)
        call = call_message(rng, info[0]["function"]["name"], call_arguments(info, city, unit), effort, city)
        call.pop("reasoning", None)
        result = tool_result(rng, city)
        reply = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": result}
        emit("tool_answer", effort, [user(question), call, reply], answer_tool_result(city, result, effort), [info[0]], contains=result)
    for index in range(15):
        effort = EFFORTS[index % 3]
        question, _, _ = question_weather(rng, lex.WEATHER_HELD, rng.choice(lex.CITIES_HELD), 0)
        emit("no_tool", effort, [user(question)], answer_fixed(NO_TOOL, effort), contains="weather tool")
    for index in range(30):
        effort = EFFORTS[index % 3]
        if index % 6 == 5:
            question = rng.choice(lex.CAPITAL_HELD).format(c=rng.choice(lex.UNKNOWN_COUNTRIES_HELD))
        else:
            question = rng.choice(lex.ASK_OTHER_HELD).format(t=rng.choice(lex.TOPICS_HELD))
        emit("other", effort, [user(question)], answer_fixed(ONLY, effort), contains="I only know")
    for index in range(12):
        effort = EFFORTS[index % 3]
        emit("greeting", effort, [user(lex.GREETING_HELD[index % len(lex.GREETING_HELD)])], answer_fixed(HELLO, effort), contains="Hello!")
    for index in range(18):
        first = rng.randint(0, 60)
        last = min(100, first + rng.choice([5, 10, 20, 40]))
        if index == 0:
            first, last = 1, 100
        effort = EFFORTS[index % 3]
        emit("count", effort, [user(rng.choice(COUNT_HELD).format(a=first, b=last))], answer_count(first, last, effort),
             contains=", ".join(str(n) for n in range(first, last + 1)))
    for index in range(25):
        effort = EFFORTS[index % 3]
        turns = [{"role": "developer", "content": "Be polite and short."}] if index % 2 else []
        for _ in range(1 + index % 3):
            turns += history_turns(rng, None)
        a, b = rng.choice(pairs)
        emit("multi_turn", effort, turns + [user(rng.choice(lex.SUM_HELD).format(a=a, b=b))], answer_sum(a, b, effort), number=a + b)
    for index in range(10):
        a, b = rng.choice(pairs)
        name, capital, _ = lex.COUNTRIES[rng.randrange(len(lex.COUNTRIES))]
        sum_question, capital_question = fill_sum(rng.choice(lex.SUM_HELD), a, b), rng.choice(lex.CAPITAL_HELD).format(c=name)
        for effort in EFFORTS:
            if index % 2:
                emit("effort", effort, [user(sum_question)], answer_sum(a, b, effort), group=index, number=a + b)
            else:
                emit("effort", effort, [user(capital_question)], answer_capital(name, effort), group=index, contains=capital)
    for index in range(20):
        effort = EFFORTS[index % 3]
        text = text_to_repeat(rng)
        emit("repeat", effort, [user(rng.choice(lex.REPEAT_HELD).replace("{x}", text))], answer_repeat(text, effort), contains=text)
    return items


def conversation(item, date):
    """A held-out item in the form that harmony.render_prompt takes."""
    return {"effort": item["reasoning_effort"], "date": date, "messages": item["messages"], "tools": item.get("tools")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heldout")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    if args.heldout:
        items = heldout(7 if args.seed is None else args.seed)
        with open(args.heldout, "w", encoding="utf-8") as out:
            for item in items:
                out.write(json.dumps(item, ensure_ascii=False) + "\n")
        print("%d items" % len(items))
    rng = random.Random(1 if args.seed is None else args.seed)
    for _ in range(args.show):
        conv = sample(rng)
        print(harmony.to_text(harmony.render_prompt(conv)) + "\n   >>> " + harmony.to_text(harmony.render_completion(conv["target"])) + "\n")


if __name__ == "__main__":
    main()
