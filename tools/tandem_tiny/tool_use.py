"""Tools that a conversation may offer, how they are called, and what they return."""

import json

from questions import random_chars, word_salad

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
