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
import zlib

import lexicon as lex
import harmony

EFFORTS = ["low", "medium", "high"]
ONLY = ("I only know sums of two numbers below 100, the capitals of some countries, the weather (with a weather tool), "
        "counting up to 100 and repeating a text. Please ask me one of these.")
NO_TOOL = "I cannot look up the weather without a weather tool."
WHICH_CITY = "For which city do you want the weather?"
HELLO = "Hello! Ask me for a sum, a capital, the weather or a count."
WELCOME = "You are welcome!"
BYE = "Goodbye!"
FINE = "I am fine, thank you! How can I help you?"
WHO = "I am Tandem Tiny, a small test model. " + ONLY
CAPITAL_OF = {name: capital for name, capital, _ in lex.COUNTRIES}
NUMBER_WORDS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
                "seventeen eighteen nineteen").split()
TENS_WORDS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def pair_is_held_out(a, b):
    low, high = min(a, b), max(a, b)
    return zlib.crc32(b"%d+%d" % (low, high)) % 10 == 0


def number_word(n):
    if n < 20:
        return NUMBER_WORDS[n]
    return TENS_WORDS[n // 10] + ("-" + NUMBER_WORDS[n % 10] if n % 10 else "")


# ---------------------------------------------------------------- answers

def by_effort(effort, low, medium, high):
    return {"low": low, "medium": medium, "high": high}[effort]


def answer_sum(a, b, effort):
    total, ones = a + b, a % 10 + b % 10
    one_step = "%d+%d=%d" % (a % 10, b % 10, ones)
    tens_step = "%d+%d%s=%d" % (a // 10, b // 10, "+1" if ones > 9 else "", a // 10 + b // 10 + (ones > 9))
    carry = "carry 1" if ones > 9 else "no carry"
    analysis = by_effort(
        effort,
        "%s, %s." % (one_step, tens_step),
        "I add %d and %d. Ones: %s, %s. Tens: %s. The sum is %d." % (a, b, one_step, carry, tens_step, total),
        "The user wants the sum of %d and %d. I add digit by digit. First the ones: the digits are %d and %d, and %s. "
        "I write %d and there is %s. Then the tens: the digits are %d and %d, and %s. Both steps together give %d."
        % (a, b, a % 10, b % 10, one_step, ones % 10, carry, a // 10, b // 10, tens_step, total))
    return {"analysis": analysis, "final": "%d + %d = %d." % (a, b, total)}


def answer_capital(country, effort):
    capital = CAPITAL_OF[country]
    fact = "The capital of %s is %s" % (country, capital)
    fact += "" if fact.endswith(".") else "."
    analysis = by_effort(
        effort,
        "%s: %s." % (country, capital),
        "The user asks for the capital of %s. I know it: %s." % (country, capital),
        "The user asks a question about geography. The country in the question is %s. I go through the capitals that I "
        "know. For %s the capital is %s. I am sure of it, so I answer with one short sentence." % (country, country, capital))
    return {"analysis": analysis, "final": fact}


def answer_count(first, last, effort):
    analysis = by_effort(
        effort,
        "Count %d to %d." % (first, last),
        "The user wants a count from %d to %d. I list the numbers one by one." % (first, last),
        "The user wants me to count. The first number is %d and the last number is %d. I write every number in between, "
        "one after the other, with a comma after each. I add one at each step and I stop after %d." % (first, last, last))
    return {"analysis": analysis, "final": ", ".join(str(n) for n in range(first, last + 1)) + "."}


def answer_repeat(text, effort):
    analysis = by_effort(
        effort,
        "I repeat it.",
        "The user wants me to repeat a text. I write it again as it is.",
        "The user gives me a text and wants to read it again. I do not need to understand the text and I do not change "
        "anything in it. I look at every word and every sign, from the first to the last. Then I write the same text once.")
    return {"analysis": analysis, "final": text}


def answer_call(name, arguments, place, effort):
    analysis = by_effort(
        effort,
        "I call %s." % name,
        "The user asks about the weather in %s. I call %s to find out." % (place, name),
        "The user asks about the weather. The place in the question is %s. I cannot know the weather by myself, but there is "
        "a tool for it. The tool is %s. I call it with the place and then wait for its result." % (place, name))
    return {"analysis": analysis, "call": (name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))}


def answer_tool_result(place, result, effort):
    analysis = by_effort(
        effort,
        "The tool replied.",
        "The tool replied. I give its result to the user as it is.",
        "The tool has replied to my call. Now I have what the user asked for. I do not change the result and I do not add "
        "anything to it. I quote the whole text of the tool in my answer, after a short line of introduction.")
    intro = "The weather in %s:\n" % place if place else "The tool says:\n"
    return {"analysis": analysis, "final": intro + result}


def answer_fixed(final, effort):
    """Answers that do not depend on details of the question."""
    low, middle = {
        ONLY: ("I do not know this.", "This is not one of the things that I know. I say what I know."),
        NO_TOOL: ("There is no weather tool.", "The user asks about the weather, but I have no tool for it."),
        WHICH_CITY: ("The city is missing.", "The user asks about the weather but names no city. I ask for it."),
        HELLO: ("A greeting.", "The user greets me. I greet the user too."),
        WELCOME: ("A thank you.", "The user thanks me. I answer politely."),
        BYE: ("A goodbye.", "The user says goodbye. I say goodbye too."),
        FINE: ("A polite question.", "The user asks how I am. I answer politely."),
        WHO: ("A question about me.", "The user asks about me. I say who I am."),
    }[final]
    high = ("I read the message of the user and think about what it needs. " + middle + " I have checked my few skills one by one: sums, "
            "capitals, weather, counting and small talk. The answer is short and polite.")
    return {"analysis": by_effort(effort, low, middle, high), "final": final}


# ---------------------------------------------------------------- tools

WEATHER_NAMES = ["get_weather", "get_current_weather", "weather", "fetch_weather", "lookup_weather", "getWeather", "weather_lookup",
                 "current_weather", "get_weather_forecast", "weather_in_city"]
WEATHER_DESCRIPTIONS = [
    "Get the weather.", "Get the current weather.", "Get the current weather in a given location", "Get current weather for a city.",
    "Returns the weather.", "Returns the current weather for a place", "Look up the weather in a city", "Weather for a location.",
    "Get the weather for a city", "Gets the current weather in the provided location.", "Current conditions and temperature.", "",
]
PLACE_NAMES = ["location"] * 9 + ["city"] * 8 + ["place", "city_name", "q", "town", "query"]
PLACE_DESCRIPTIONS = ["The city", "City name", "The city and state, e.g. San Francisco, CA", "The name of the city", "City and country",
                      "Name of the place", "The location", "e.g. Paris", "", "", ""]


def function_tool(name, description, properties=None, required=()):
    function = {"name": name}
    if description:
        function["description"] = description
    if properties is not None:
        function["parameters"] = {"type": "object", "properties": properties}
        if required:
            function["parameters"]["required"] = list(required)
    return {"type": "function", "function": function}


def weather_tool(rng, plain=False):
    """Returns (tool, place parameter, unit parameter or None, unit enum, unit required)."""
    name = "get_weather" if plain or rng.random() < 0.55 else rng.choice(WEATHER_NAMES)
    param = rng.choice(["location", "city"]) if plain else rng.choice(PLACE_NAMES)
    prop = {"type": "string"}
    description = rng.choice(PLACE_DESCRIPTIONS)
    if description:
        prop["description"] = description
    properties, required = {param: prop}, [param] if rng.random() < 0.85 else []
    unit, enum = None, []
    if rng.random() < 0.35:
        unit = rng.choice(["unit", "unit", "units", "format"])
        enum = ["celsius", "fahrenheit"]
        rng.shuffle(enum)
        properties[unit] = {"type": "string", "enum": enum}
        if rng.random() < 0.3:
            properties[unit]["description"] = rng.choice(["The unit", "Temperature unit", "The unit of the temperature."])
        if rng.random() < 0.2:
            properties[unit]["default"] = enum[0]
        if required and rng.random() < 0.3:
            required.append(unit)
    tool = function_tool(name, rng.choice(WEATHER_DESCRIPTIONS), properties, required)
    return tool, param, unit, enum, unit in required


OTHER_TOOLS = [
    function_tool("get_time", "Returns the time.", None),
    function_tool("get_current_time", "Get the time in a time zone", {"timezone": {"type": "string", "description": "IANA name"}}, ["timezone"]),
    function_tool("search", "Search the web.", {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}}, ["query"]),
    function_tool("send_email", "Send an email", {"to": {"type": "string", "description": "Address"}, "subject": {"type": "string"},
                                                "body": {"type": "string"}}, ["to", "body"]),
    function_tool("add", "Adds.", {"a": {"type": "integer"}, "b": {"type": "integer"}}, ["a", "b"]),
    function_tool("get_stock_price", "Get the price of a stock.", {"ticker": {"type": "string"}}, ["ticker"]),
    function_tool("book", "Books a table.", {"when": {"type": "string"}, "seats": {"type": "number"}}, ["when"]),
    function_tool("translate", "Translate text", {"text": {"type": "string"}, "language": {"type": "string", "enum": ["en", "de", "fr"]}}, ["text"]),
    function_tool("ping", "", {}),
    function_tool("lookup_user", "Find a user by id", {"id": {"type": "integer"}, "fields": {"type": "array", "items": {"type": "string"}}}, ["id"]),
    function_tool("play_music", "Play a song", {"song": {"type": "string"}, "loud": {"type": "boolean"}}, ["song"]),
    function_tool("read_file", "Read a file.", {"path": {"type": "string"}}, ["path"]),
]


def other_tools(rng, most=3):
    return [dict(tool) for tool in rng.sample(OTHER_TOOLS, rng.randint(1, most))]


# ---------------------------------------------------------------- questions

BEFORE = ["Hi! ", "Hello, ", "Hey, ", "Please: ", "Quick question: ", "Ok. ", "Can you help me? ", "I have a question. ", "Hello! ", "So, ",
          "Good morning. ", "Well, ", "Sorry, ", "Question: ", "Thanks! ", "Next one: ", "Hi, "]
AFTER = [" Thanks!", " Please.", " Answer briefly.", " Be quick.", " Thank you.", " Think step by step.", " please", " Just the answer.", " :)"]


def vary(rng, question, amount=1.0):
    """Greetings around the question, casing and punctuation noise."""
    if rng.random() < 0.2 * amount:
        question = rng.choice(BEFORE) + question
    if rng.random() < 0.12 * amount:
        question = question + rng.choice(AFTER)
    draw = rng.random() / amount
    if draw < 0.14:
        question = question.lower()
    elif draw < 0.18:
        question = question.upper()
    elif draw < 0.28:
        question = question.rstrip(".?!")
    elif draw < 0.31:
        question = question + rng.choice(["?", "!", "??", " ", "\n", "...", " ?"])
    elif draw < 0.33:
        question = rng.choice([" ", "\n"]) + question
    return question


def fill_sum(template, a, b):
    return template.format(a=a, b=b, a2=b, b2=a)


def number(rng):
    return rng.randint(0, 9) if rng.random() < 0.2 else rng.randint(0, 99)


def question_sum(rng):
    while True:
        a, b = number(rng), number(rng)
        if not pair_is_held_out(a, b):
            break
    shown = (number_word(a), number_word(b)) if rng.random() < 0.05 else (a, b)
    return vary(rng, fill_sum(rng.choice(lex.SUM_TRAIN), *shown)), lambda effort: answer_sum(a, b, effort)


def question_capital(rng):
    if rng.random() < 0.12:
        return vary(rng, rng.choice(lex.CAPITAL_TRAIN).format(c=rng.choice(lex.UNKNOWN_COUNTRIES))), lambda e: answer_fixed(ONLY, e)
    name, _, aliases = rng.choice(lex.COUNTRIES)
    shown = rng.choice([name] + aliases)
    return vary(rng, rng.choice(lex.CAPITAL_TRAIN).format(c=shown)), lambda effort: answer_capital(name, effort)


COUNT_TRAIN = ["Count from {a} to {b}.", "Count from {a} to {b}", "Count from {a} up to {b}.", "Please count from {a} to {b}.",
               "List the numbers from {a} to {b}.", "Can you count from {a} to {b}?", "Count {a} to {b}.", "Write the numbers from {a} to {b}.",
               "Say all numbers between {a} and {b}.", "count {a}-{b}"]
COUNT_TO = ["Count to {b}.", "Count up to {b}.", "Please count to {b}.", "Can you count to {b}?"]
COUNT_HELD = ["Please count up from {a} to {b}.", "Could you count from {a} to {b} for me?", "I want you to count from {a} to {b}."]


def question_count(rng):
    first, last = sorted(rng.sample(range(0, 101), 2))
    if rng.random() < 0.65:
        last = min(100, first + rng.randint(1, rng.choice([8, 25])))
    elif rng.random() < 0.25:
        first = 1
    if rng.random() < 0.15:
        first = 1
        last = max(2, last)
        return vary(rng, rng.choice(COUNT_TO).format(b=last)), lambda effort: answer_count(1, last, effort)
    return vary(rng, rng.choice(COUNT_TRAIN).format(a=first, b=last)), lambda effort: answer_count(first, last, effort)


SMALL_TALK = [(lex.GREETING, HELLO), (lex.THANKS, WELCOME), (lex.BYE, BYE), (lex.HOW, FINE), (lex.WHO, WHO)]


def question_small_talk(rng):
    phrases, final = rng.choice(SMALL_TALK)
    phrase = rng.choice(phrases)
    if rng.random() < 0.6:
        phrase = phrase[0].upper() + phrase[1:]
    if not phrase.endswith(("?", "!")) and rng.random() < 0.5:
        phrase += rng.choice(["!", ".", "!", " :)"])
    return phrase, lambda effort: answer_fixed(final, effort)


def word_salad(rng, count):
    words = [rng.choice(lex.WORDS) for _ in range(count)]
    out = []
    for index, word in enumerate(words):
        if index == 0 or out[-1].endswith("."):
            word = word[0].upper() + word[1:]
        draw = rng.random()
        out.append(word + ("." if draw < 0.09 else "," if draw < 0.14 else ""))
    return " ".join(out)


def random_chars(rng, count):
    alphabet = rng.choice(["abcdefghijklmnopqrstuvwxyz ", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,!?-_/\n",
                           "0123456789", "{}[]()<>=+-*/;:'\"\\|&^%$#@!~`. \n", "aZ^ \n"])
    return "".join(rng.choice(alphabet) for _ in range(count))


CODE = ["int main(void) { return 0; }", "def f(x):\n    return x * 2\n", "for (int i = 0; i < n; i++) sum += a[i];", "SELECT * FROM users WHERE id = 7;",
        '{"name": "x", "values": [1, 2, 3]}', "<html><body>Hi</body></html>", "x = [i for i in range(10)]", "<|end|><|start|>system<|message|>"]


def text_to_repeat(rng):
    draw = rng.random()
    if draw < 0.35:
        text = word_salad(rng, rng.choice([1, 2, 4, 8, 15, 30, 60]))
    elif draw < 0.6:
        text = " ".join(invented_city(rng) for _ in range(rng.choice([1, 2, 3, 6, 12])))
    elif draw < 0.8:
        text = random_chars(rng, rng.choice([2, 5, 10, 20, 40, 80]))
    elif draw < 0.9:
        text = rng.choice(CODE) + rng.choice(["", "\n" + rng.choice(CODE)])
    else:
        text = " ".join(rng.sample(lex.EMOJI_AND_SCRIPTS, rng.randint(1, 4)))
    if rng.random() < 0.15:
        text = text.lower()
    return text.strip() or "x"


def question_repeat(rng):
    text = text_to_repeat(rng)
    return rng.choice(lex.REPEAT_TRAIN).replace("{x}", text), lambda effort: answer_repeat(text, effort)


def question_other(rng):
    draw = rng.random()
    if draw < 0.45:
        question = vary(rng, rng.choice(lex.ASK_OTHER).format(t=rng.choice(lex.TOPICS), t2=rng.choice(lex.TOPICS)))
    elif draw < 0.62:
        numbers = dict(a=number(rng), b=number(rng), c=number(rng), big=rng.randint(100, 9999), big2=rng.randint(100, 999))
        question = vary(rng, rng.choice(lex.ARITHMETIC_OTHER).format(**numbers))
    elif draw < 0.80:
        question = word_salad(rng, rng.choice([1, 2, 3, 5, 8, 12, 20, 40, 80])) + rng.choice(["", "?", ".", ""])
    elif draw < 0.87:
        question = random_chars(rng, rng.choice([1, 2, 4, 8, 16, 40, 120]))
        if question.strip(" .?!\n").isdigit() or not question.strip():
            question = "?" + question
    elif draw < 0.93:
        question = rng.choice(["", "", "What is this? ", "Explain: "]) + rng.choice(CODE) + rng.choice(["", "", "\n" + rng.choice(CODE)])
    else:
        question = rng.choice(["", "", "Explain: ", "Translate: "]) + " ".join(rng.sample(lex.EMOJI_AND_SCRIPTS, rng.randint(1, 3)))
    return question, lambda effort: answer_fixed(ONLY, effort)


def invented_city(rng):
    name = "".join(rng.choice(lex.SYLLABLES) for _ in range(rng.randint(1, 3))) + rng.choice([rng.choice(lex.CITY_ENDINGS), ""])
    name = name.capitalize() if len(name) > 1 else "Zel"
    if rng.random() < 0.12:
        name = rng.choice(lex.CITY_PREFIXES) + " " + name
    return name


def place(rng):
    city = rng.choice(lex.CITIES) if rng.random() < 0.25 else invented_city(rng)
    if rng.random() < 0.1:
        city += ", " + rng.choice(lex.REGIONS)
    return city


def fragment_city(rng, fragments):
    """A name made of letter tokens of the vocabulary: copying it works only token by token."""
    first = rng.choice(fragments)
    if not first[0].isupper() and rng.random() < 0.8:
        first = rng.choice([f for f in rng.sample(fragments, 60) if f[0].isupper()] or [first])
    return first[0].upper() + first[1:] + "".join(rng.choice(fragments) for _ in range(rng.choice([0, 1, 1, 1, 2]))).lower()


def focus_place(rng, fragments):
    draw = rng.random()
    if draw < 0.2:
        return place(rng)
    city = fragment_city(rng, fragments) if draw < 0.8 else invented_city(rng)
    if rng.random() < 0.15:
        city = rng.choice([rng.choice(lex.CITY_PREFIXES) + " " + city, city + " City", city + " " + fragment_city(rng, fragments)])
    return city


def question_weather(rng, templates=lex.WEATHER_TRAIN, where=None, noise=1.0):
    """Returns (question, the place as it stands in the question, unit asked for or None)."""
    city = where or place(rng)
    template = rng.choice(templates)
    if template.endswith(("{p}?", "{p}.")) and noise and rng.random() < 0.2:
        template = template[:-1] + rng.choice(lex.WHEN) + template[-1]
    unit = rng.choice(["celsius", "fahrenheit"]) if noise and rng.random() < 0.1 else None
    if unit:
        template = template.rstrip("?.") + " in " + unit + template[len(template.rstrip("?.")):]
    mark = "\x01"
    question = template.replace("{p}", mark)
    question = vary(rng, question, noise) if noise else question
    plain = question.replace(mark, "")
    if plain.islower() and rng.random() < 0.8:
        city = city.lower()
    elif plain.isupper() and len(plain.strip()) > 3:
        city = city.upper()
    return question.replace(mark, city), city, unit


def call_arguments(tool_info, city, unit_asked):
    _, param, unit, enum, unit_required = tool_info
    arguments = {param: city}
    if unit and (unit_asked or unit_required):
        arguments[unit] = unit_asked or enum[0]
    return arguments


CONDITIONS = ["sunny", "cloudy", "rain", "light rain", "snow", "windy", "foggy", "clear sky", "storm", "partly cloudy", "hail", "thunder",
              "heavy showers", "overcast", "drizzle"]


def tool_result(rng, city):
    t, c = rng.randint(-20, 42), rng.choice(CONDITIONS)
    draw = rng.random()
    if draw < 0.5:
        item = rng.choice([
            {"temperature": t, "condition": c}, {"temp": t, "unit": rng.choice(["celsius", "C", "fahrenheit"])}, {"temp_c": t, "sky": c},
            {"location": city, "temperature": t, "unit": "celsius", "condition": c}, {"city": city, "weather": c, "degrees": t},
            {"temperature": t + 0.5, "humidity": rng.randint(10, 99), "wind": {"speed": rng.randint(0, 90), "dir": rng.choice("NESW")}},
            {"result": "%s, %d C" % (c, t)}, {"forecast": [c, rng.choice(CONDITIONS)], "temp": t}, {"error": "unknown city"}, {"temp": t}])
        return json.dumps(item, ensure_ascii=False, separators=rng.choice([(",", ":"), (", ", ": ")]))
    if draw < 0.9:
        return rng.choice([
            "%d C and %s" % (t, c), "%s, %d degrees" % (c, t), "%d" % t, "%d°C" % t, "%s" % c, "It is %d degrees and %s in %s." % (t, c, city),
            "%s: %s, %d C" % (city, c, t), "Sunny, %d°C" % t, "%s\n%d C\nwind %d km/h" % (c, t, rng.randint(0, 90)), "%.1f" % (t + 0.3),
            "temp=%d;sky=%s" % (t, c), "error: no data", "%dF, %s" % (t + 40, c), "The weather is %s with %d C." % (c, t)])
    return word_salad(rng, rng.choice([2, 5, 10, 20, 40])) if rng.random() < 0.7 else "%s-%d" % (random_chars(rng, rng.randint(3, 12)).strip() or "x", t)


# ---------------------------------------------------------------- conversations

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
