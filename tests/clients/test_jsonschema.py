"""What masks let through is valid: texts drawn at random from the masks of schemas, judged by the
jsonschema package. One [ OK ] line a group of schemas, like the other tests."""

import argparse
import decimal
import json
import os
import subprocess
import sys

import jsonschema

decimal.getcontext().prec = 400  # digits of the largest number over the smallest multiple

OBJECT = {"type": "object", "additionalProperties": False}
GROUPS = {
    "types": [
        {"type": t} for t in ("null", "boolean", "integer", "number", "string", "array", "object")
    ] + [{}, {"type": ["string", "null"]}, {"type": ["integer", "array", "boolean"]}],
    "strings": [
        {"type": "string", "minLength": 3},
        {"type": "string", "maxLength": 4},
        {"type": "string", "minLength": 2, "maxLength": 2},
        {"type": "string", "pattern": "^[a-z]{2,5}$"},
        {"type": "string", "pattern": "[0-9]{2}"},
        {"type": "string", "pattern": "^(foo|ba[rz])+(-\\d+)?$"},
        {"type": "string", "pattern": "^[^a-y\\n]*$", "maxLength": 6},
        {"type": "string", "pattern": "^\\S+ \\S+$", "minLength": 5},
        {"type": "string", "pattern": "^a|b$"},
        {"type": "string", "pattern": "^.{1,3}$"},
        {"type": "string", "pattern": "^\\[[\\w.-]*\\]\\{\\}$"},
    ],
    "formats": [
        {"type": "string", "format": f}
        for f in ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6",
                  "uuid", "uri")
    ],
    "numbers": [
        {"type": "integer", "minimum": 0},
        {"type": "integer", "maximum": -3},
        {"type": "integer", "minimum": -7, "maximum": 1203},
        {"type": "integer", "exclusiveMinimum": 8, "exclusiveMaximum": 12},
        {"type": "integer", "minimum": 0.5, "maximum": 99.5},
        {"type": "integer", "multipleOf": 3},
        {"type": "integer", "multipleOf": 25, "minimum": -100, "maximum": 1000},
        {"type": "number", "multipleOf": 4},
        {"type": "number", "multipleOf": 0.01},
        {"type": "number", "multipleOf": 0.1, "minimum": -0.35, "exclusiveMaximum": 12.3},
        {"type": "number", "multipleOf": 2.5},
        {"type": "number", "multipleOf": 0.125, "exclusiveMinimum": 0, "maximum": 1},
        {"type": "number", "multipleOf": 1e-9, "minimum": 0},
        {"type": "integer", "multipleOf": 0.5},
        {"type": "integer", "multipleOf": 7.5},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "exclusiveMinimum": -1.5, "maximum": 20.125},
        {"type": "number", "minimum": 0.1},
        {"type": "number", "exclusiveMaximum": -0.001},
        {"type": "number", "exclusiveMinimum": 123.456},
        {"type": "number", "minimum": 1e-7, "maximum": 3e-7},
    ],
    "literals": [
        {"const": {"a": [1, "x", None], "b": 0.1}},
        {"enum": ["a", "ab", "\u00e9\n\"", 1, 12, -0.25, 1e-7, True, None, [], [1, {"b": 2}]]},
        {"type": ["string", "integer"], "enum": ["a", 1, 1.5, None]},
    ],
    "arrays": [
        {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        {"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"},
         "minItems": 2, "maxItems": 4},
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 1},
    ],
    "objects": [
        {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}},
        {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": True},
         "required": ["b"]},
        {"type": "object", "properties": {"id": {"type": "integer"}, "idx": {"const": 1}},
         "additionalProperties": {"type": "boolean"}},
        {"type": "object", "properties": {"\u00e9": {"type": "null"}, "a\"": {"type": "null"}},
         "additionalProperties": {"type": "integer"}},
        {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
        {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1},
        {"type": "object", "required": ["a"]},
        {"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 3}},
        {"type": "object", "patternProperties": {"^[a-z]_": {"type": "integer"}},
         "additionalProperties": False},
        {"type": "object", "properties": {"a": False, "b": {"type": "integer"}}},
    ],
    "joined": [
        {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "maxLength": 2}]},
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
         "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"anyOf": [{**OBJECT, "properties": {"k": {"const": k}, "v": v}, "required": ["k", "v"]}
                   for k, v in (("x", {"type": "integer"}), ("xy", {"type": "null"}))]},
        {"allOf": [{"type": "object", "properties": {"a": {"minimum": 3}}, "required": ["a"]},
                   {"properties": {"a": {"type": "integer"}, "b": {"maxLength": 3}}}]},
        {"allOf": [{"type": ["integer", "null"]}, {"type": "number", "maximum": 4}]},
        {"$defs": {"n": {**OBJECT, "properties": {
            "v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["v", "next"]}}, "$ref": "#/$defs/n"},
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "minLength": 2},
    ],
}


def as_validated(schema):
    """oneOf counts as anyOf here, and is documented so."""
    if isinstance(schema, list):
        return [as_validated(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    return {("anyOf" if k == "oneOf" else k): as_validated(v) for k, v in schema.items()}


def draw(args, schemas, count, tokenizer):
    command = [os.path.join(args.bin, "grammar_draw"), str(count)] + tokenizer
    text = "".join(json.dumps(s) + "\n" for s in schemas)
    out = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True,
                         timeout=args.patience).stdout
    answers = []
    for line in out.decode().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "schema":
            answers.append((rest, []))
        else:
            answers[-1][1].append(bytes.fromhex(rest))
    assert len(answers) == len(schemas), f"{len(answers)} answers to {len(schemas)} schemas"
    return answers


def judge(args, schemas, count, tokenizer, may_be_empty):
    """Number of texts; the first that is wrong raises."""
    texts = 0
    made = 0
    for schema, (error, drawn) in zip(schemas, draw(args, schemas, count, tokenizer)):
        if error:
            assert may_be_empty and "matches no value" in error, f"{json.dumps(schema)}: {error}"
            continue
        made += 1
        # In decimals: as doubles 0.3 is no multiple of 0.1.
        checked = as_validated(json.loads(json.dumps(schema), parse_float=decimal.Decimal))
        validator = jsonschema.Draft202012Validator(
            checked, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        assert drawn or may_be_empty, f"{json.dumps(schema)}: no text ended"
        for text in drawn:
            try:
                validator.validate(
                    json.loads(text.decode("utf-8", "strict"), parse_float=decimal.Decimal))
            except RecursionError:  # the package's own, where a $ref leads to itself in an anyOf
                assert may_be_empty
                break
            except (ValueError, jsonschema.ValidationError) as e:
                raise AssertionError(f"{json.dumps(schema)}\n  {text!r}: {e}") from e
        texts += len(drawn)
    assert made * 4 >= len(schemas) * 3
    return texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--slow", action="store_true")
    args = parser.parse_args()
    args.patience = 400 if args.slow else 150
    count = 30 if args.slow else 60
    vocabulary = os.environ.get("TANDEM_O200K")
    tests = {f"test_{name}_are_valid": (schemas, count, [], False)
             for name, schemas in GROUPS.items()}
    lines = subprocess.run([os.path.join(args.bin, "grammar_draw"), "--random", "1", "250"],
                           stdout=subprocess.PIPE, check=True, timeout=args.patience).stdout
    random = [json.loads(x) for x in lines.decode().splitlines()]
    tests["test_random_schemas_are_valid"] = (random, count // 10, [], True)
    if vocabulary:
        every = [s for schemas in GROUPS.values() for s in schemas]
        tests["test_o200k_texts_are_valid"] = (every, 2, [vocabulary], True)
    failed = 0
    for name, (schemas, n, tokenizer, may_be_empty) in tests.items():
        print(f"[ RUN      ] {name}")
        try:
            texts = judge(args, schemas, n, tokenizer, may_be_empty)
            print(f"{len(schemas)} schemas, {texts} texts")
            print(f"[       OK ] {name}", flush=True)
        except (AssertionError, subprocess.SubprocessError) as e:
            failed += 1
            print(f"{e}\n[  FAILED  ] {name}", flush=True)
    if not vocabulary:
        print("[  SKIPPED ] test_o200k_texts_are_valid: TANDEM_O200K is not set")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
