"""Scores tandem-tiny on its held-out set and prints the accuracy of each skill.

A running OpenAI-compatible server (only the standard library is needed):
    python evaluate.py --url http://127.0.0.1:8000/v1 [--served-name NAME] [--temperature 0]

The checkpoint through transformers (GptOssForCausalLM, experts dequantised):
    python evaluate.py --model MODEL_DIR [--dtype bfloat16] [--temperature 0]

--check-logits compares the transformers model with the training module instead of generating.
`right` asks for the right answer (number, capital, call with its arguments, quoted result) with the
right stop; `exact` asks for the very text that training aims at, reasoning included.
"""

import argparse
import concurrent.futures
import json
import os
import re
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_SET = os.path.join(HERE, "..", "..", "models", "tandem-tiny", "eval", "heldout.jsonl")


def load_items(path, skills, limit):
    with open(path, encoding="utf-8") as file:
        items = [json.loads(line) for line in file if line.strip()]
    if skills:
        items = [item for item in items if item["skill"] in skills.split(",")]
    return items[:limit] if limit else items


# ---------------------------------------------------------------- scoring

def judge(item, reply):
    """reply: {content, reasoning, calls: [(name, arguments text)], finish}. Returns (right, exact)."""
    expected = item["expected"]
    content, calls = reply["content"] or "", reply["calls"]
    if reply["finish"] != expected["finish_reason"]:
        return False, False
    exact = (reply["reasoning"] or "") == expected["analysis"]
    if "tool" in expected:
        if len(calls) != 1:
            return False, False
        name, arguments = calls[0]
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return False, False
        right = name == expected["tool"]["name"] and arguments == expected["tool"]["arguments"]
        return right, right and exact
    exact = exact and content == expected["final"]
    if calls:
        return False, False
    if "number" in expected:
        numbers = re.findall(r"\d+", content)
        return bool(numbers) and int(numbers[-1]) == expected["number"], exact
    if item["skill"] == "repeat":
        return content == expected["final"], exact
    return expected["contains"] in content, exact


def report(items, replies, seconds):
    skills = {}
    for item, reply in zip(items, replies):
        skills.setdefault(item["skill"], []).append((item, reply))
    print("%-12s %5s %6s %6s   %s" % ("skill", "n", "right", "exact", "mean reasoning tokens low / medium / high"))
    total = [0, 0, 0]
    for skill, rows in skills.items():
        verdicts = [judge(item, reply) for item, reply in rows]
        lengths = []
        for effort in ("low", "medium", "high"):
            counts = [reply["reasoning_tokens"] for item, reply in rows
                      if item["reasoning_effort"] == effort and reply["reasoning_tokens"] is not None]
            lengths.append("%.1f" % (sum(counts) / len(counts)) if counts else "-")
        right, exact = sum(v[0] for v in verdicts), sum(v[1] for v in verdicts)
        total = [total[0] + len(rows), total[1] + right, total[2] + exact]
        print("%-12s %5d %5.1f%% %5.1f%%   %s" % (skill, len(rows), 100 * right / len(rows), 100 * exact / len(rows), " / ".join(lengths)))
    print("%-12s %5d %5.1f%% %5.1f%%   in %.1f s" % ("all", total[0], 100 * total[1] / total[0], 100 * total[2] / total[0], seconds))
    groups = {}
    for item, reply in zip(items, replies):
        if item["skill"] == "effort":
            groups.setdefault(item["expected"]["group"], {})[item["reasoning_effort"]] = len(reply["reasoning"] or "")
    ordered = sum(1 for g in groups.values() if len(g) == 3 and g["low"] < g["medium"] < g["high"])
    if groups:
        print("effort: reasoning grows low < medium < high in %d of %d groups" % (ordered, len(groups)))
    wrong = [(item, reply) for item, reply in zip(items, replies) if not judge(item, reply)[0]]
    for item, reply in wrong[:12]:
        print("wrong %s: %r\n   expected %s\n   got      %s" % (
            item["id"], item["messages"][-1]["content"], json.dumps(item["expected"], ensure_ascii=False)[:300],
            json.dumps(reply, ensure_ascii=False)[:500]))
    return total[1] / total[0]


# ---------------------------------------------------------------- a server

def ask(url, name, item, temperature, max_tokens, timeout):
    body = {"model": name, "messages": item["messages"], "reasoning_effort": item["reasoning_effort"], "temperature": temperature,
            "max_tokens": max_tokens}
    if item.get("tools"):
        body["tools"] = item["tools"]
    request = urllib.request.Request(url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.load(response)
    except (OSError, ValueError) as error:
        detail = error.read().decode(errors="replace")[:200] if hasattr(error, "read") else ""
        return {"content": "", "reasoning": "", "calls": [], "finish": "error: %s %s" % (error, detail), "reasoning_tokens": None}
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    details = (answer.get("usage") or {}).get("completion_tokens_details") or {}
    return {"content": message.get("content"), "reasoning": message.get("reasoning") or message.get("reasoning_content"), "calls": calls,
            "finish": choice["finish_reason"], "reasoning_tokens": details.get("reasoning_tokens")}


def score_server(args, items):
    name = args.served_name
    if not name:
        with urllib.request.urlopen(args.url.rstrip("/") + "/models", timeout=args.timeout) as response:
            name = json.load(response)["data"][0]["id"]
    print("server %s, model %s, %d items" % (args.url, name, len(items)))
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        return list(pool.map(lambda item: ask(args.url, name, item, args.temperature, args.max_tokens, args.timeout), items))


# ---------------------------------------------------------------- the checkpoint

def parse_completion(ids, encoder):
    """Splits generated ids into analysis, final text or call, and the reason for stopping."""
    names = {i: name for i, name in encoder.names.items()}
    reply = {"content": None, "reasoning": None, "calls": [], "finish": "length", "reasoning_tokens": 0}
    header, body, in_body = [], [], False

    def close():
        head = encoder.decode(header)
        text = encoder.decode(body)
        if "to=functions." in head:
            reply["calls"].append((re.search(r"to=functions\.([\w-]+)", head).group(1), text))
        elif "<|channel|>analysis" in head:
            reply["reasoning"], reply["reasoning_tokens"] = text, len(body)
        else:
            reply["content"] = text

    for token in ids:
        name = names.get(token)
        if name in ("<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"):
            if in_body:
                close()
            header, body, in_body = [], [], False
            if name != "<|end|>":
                reply["finish"] = "tool_calls" if name == "<|call|>" else "stop"
                break
        elif name == "<|message|>" and not in_body:
            in_body = True
        else:
            (body if in_body else header).append(token)
    return reply


def load_transformers(folder, dtype, device):
    import torch
    import transformers
    quantisation = transformers.Mxfp4Config(dequantize=True)
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), quantization_config=quantisation,
                                                           attn_implementation="eager")
    return net.to(device).eval()


def target_of(expected):
    """The completion that training aims at, as harmony.render_completion takes it."""
    if "tool" in expected:
        arguments = json.dumps(expected["tool"]["arguments"], ensure_ascii=False, separators=(",", ":"))
        return {"analysis": expected["analysis"], "call": (expected["tool"]["name"], arguments)}
    return {"analysis": expected["analysis"], "final": expected["final"]}


def exact_replies(net, encoder, items, prompts, device):
    """Replies of the items whose whole target is the argmax at every position (one forward pass each):
    greedy decoding gives exactly that text. None for the others."""
    import torch
    import harmony
    replies = [None] * len(items)
    for i, item in enumerate(items):
        target = target_of(item["expected"])
        completion = encoder.encode(harmony.render_completion(target))
        ids = torch.tensor([prompts[i] + completion], device=device)
        with torch.no_grad():
            logits = net(ids).logits[0, len(prompts[i]) - 1:-1]
        if logits.argmax(-1).tolist() == completion:
            replies[i] = parse_completion(completion, encoder)
    return replies


def score_checkpoint(args, items):
    import torch
    import data
    import harmony
    import tokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = load_transformers(args.model, args.dtype, device)
    encoder = tokenizer.Encoder(os.path.join(args.model, "tokenizer.json"))
    pad = encoder.special["<|endoftext|>"]
    stops = [encoder.special[n] for n in ("<|return|>", "<|call|>", "<|endoftext|>")]
    prompts = [encoder.encode(harmony.render_prompt(data.conversation(item, args.date))) for item in items]
    replies = [None] * len(items)
    if args.temperature == 0:
        replies = exact_replies(net, encoder, items, prompts, device)
    # Long answers (counting) together, so that short ones do not wait for them.
    order = sorted(range(len(items)), key=lambda i: (items[i]["skill"] == "count", len(prompts[i])))
    order = [i for i in order if replies[i] is None]
    print("transformers %s on %s, %d items, %d of them generated token by token" % (
        args.dtype, device, len(items), len(order)), flush=True)
    torch.manual_seed(0)
    for start in range(0, len(order), args.batch):
        chunk = order[start:start + args.batch]
        width = max(len(prompts[i]) for i in chunk)
        ids = torch.full((len(chunk), width), pad)
        mask = torch.zeros((len(chunk), width), dtype=torch.long)
        for row, i in enumerate(chunk):
            ids[row, width - len(prompts[i]):] = torch.tensor(prompts[i])
            mask[row, width - len(prompts[i]):] = 1
        sampling = dict(do_sample=False) if args.temperature == 0 else dict(do_sample=True, temperature=args.temperature, top_p=1.0, top_k=0)
        with torch.no_grad():
            out = net.generate(ids.to(device), attention_mask=mask.to(device), max_new_tokens=args.max_tokens, eos_token_id=stops,
                               pad_token_id=pad, **sampling)
        for row, i in enumerate(chunk):
            replies[i] = parse_completion(out[row, width:].tolist(), encoder)
    return replies


def check_logits(args, items):
    import torch
    import data
    import export
    import harmony
    import model
    import tokenizer
    encoder = tokenizer.Encoder(os.path.join(args.model, "tokenizer.json"))
    reference = load_transformers(args.model, "float32", "cpu")
    net = model.TandemTiny()
    export.load(net, args.model)
    worst = 0.0
    for item in items:
        ids = torch.tensor([encoder.encode(harmony.render_prompt(data.conversation(item, args.date)))])
        with torch.no_grad():
            ours, _, shares = net(ids)
            theirs = reference(ids).logits
        difference = (ours - theirs).norm() / theirs.norm()
        worst = max(worst, difference.item())
        top = theirs[0, -1].softmax(-1).topk(2).values.tolist()
        print("%-16s %4d tokens  relative difference %.2e  argmax equal %s  logits std %.2f max %.1f  top-2 at the end %.4f %.4f" % (
            item["id"], ids.shape[1], difference, bool((ours.argmax(-1) == theirs.argmax(-1)).all()), theirs.std(), theirs.max(), *top))
    print("worst relative difference %.2e" % worst)
    print("expert shares of the last item: " + " | ".join(" ".join("%.2f" % x for x in row) for row in shares.tolist()))
    return 0 if worst < 1e-3 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="base address of a server, ending in /v1")
    parser.add_argument("--served-name", help="model name to send; asked from /models if absent")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--model", help="checkpoint folder, for scoring through transformers")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--date", default="2026-11-30", help="current date in the system message (checkpoint scoring)")
    parser.add_argument("--check-logits", action="store_true")
    parser.add_argument("--set", default=DEFAULT_SET)
    parser.add_argument("--skills", help="comma-separated subset")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=600)
    parser.add_argument("--least", type=float, default=0.0, help="exit 1 if the share of right answers is lower")
    args = parser.parse_args()
    if bool(args.url) == bool(args.model):
        parser.error("give exactly one of --url and --model")
    items = load_items(args.set, args.skills, args.limit)
    if args.check_logits:
        return check_logits(args, items)
    started = time.time()
    replies = score_server(args, items) if args.url else score_checkpoint(args, items)
    return 0 if report(items, replies, time.time() - started) >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
