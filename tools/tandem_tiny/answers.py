"""What the model is to answer: a fixed function of the question and the effort, reasoning included."""

import json

import lexicon as lex

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
