"""What users ask, each with its answer, and the texts that have no other purpose than to be read or repeated."""

import zlib

import lexicon as lex
from answers import BYE, FINE, HELLO, ONLY, WELCOME, WHO, answer_capital, answer_count, answer_fixed, answer_repeat, answer_sum

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
