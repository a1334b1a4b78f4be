"""Trains tandem-tiny for a fixed wall-clock time and writes the quantised checkpoint.

    python train.py --model MODEL_DIR --out OUT_DIR --seconds 420 [--start CHECKPOINT_DIR]

MODEL_DIR holds tokenizer.json and eval/heldout.jsonl. Expert weights are rounded to MXFP4 in the
forward pass from --quantise-from of the time on, so the written checkpoint is what was trained.
"""

import argparse
import json
import os
import random
import time

import torch
import torch.nn.functional as F

import data
import evaluate
import export
import harmony
import model as tiny
import tokenizer

IGNORE = -100


def encode_sample(encoder, prompt, completion):
    prompt, completion = encoder.encode(prompt), encoder.encode(completion)
    return prompt + completion, len(prompt)


def make_batch(rows, length=None, count=None):
    """rows of (ids, prompt length) -> padded ids (-1) and next-token labels on the completion."""
    length = length or max(len(ids) for ids, _ in rows)
    batch = torch.full((count or len(rows), length), -1, dtype=torch.long)
    labels = torch.full((count or len(rows), length), IGNORE, dtype=torch.long)
    for row, (ids, prompt) in enumerate(rows):
        batch[row, :len(ids)] = torch.tensor(ids)
        labels[row, prompt - 1:len(ids) - 1] = torch.tensor(ids[prompt:])
    return batch, labels


class Stream(torch.utils.data.IterableDataset):
    """Endless batches of about `tokens` padded tokens. Rows are padded to a multiple of 128 and each
    such length has its own fixed row count, so only a few tensor shapes ever occur."""

    STEP = 128

    def __init__(self, path, tokens, seed, longest, focus=False):
        self.path, self.tokens, self.seed, self.longest, self.focus = path, tokens, seed, longest, focus

    def __iter__(self):
        torch.set_num_threads(1)
        info = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (info.id if info else 0))
        encoder = tokenizer.Encoder(self.path)
        fragments = encoder.letter_tokens() if self.focus else None
        waiting = {}
        while True:
            conv = data.sample(rng, fragments)
            row = encode_sample(encoder, harmony.render_prompt(conv), harmony.render_completion(conv["target"]))
            length = -(-len(row[0]) // self.STEP) * self.STEP
            if length > self.longest:
                continue
            rows = waiting.setdefault(length, [])
            rows.append(row)
            if len(rows) == max(1, self.tokens // length):
                yield make_batch(rows, length)
                waiting[length] = []


def heldout_batches(encoder, folder, date="2026-11-30"):
    with open(os.path.join(folder, "eval", "heldout.jsonl"), encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    rows = []
    for item in items:
        target = evaluate.target_of(item["expected"])
        conv = data.conversation(item, date)
        rows.append((encode_sample(encoder, harmony.render_prompt(conv), harmony.render_completion(target)), item["skill"]))
    rows.sort(key=lambda row: len(row[0][0]))
    return [(make_batch([row for row, _ in rows[i:i + 64]]), [skill for _, skill in rows[i:i + 64]]) for i in range(0, len(rows), 64)]


@torch.no_grad()
def exact_match(net, batches, device, quantise):
    """Share of held-out items whose whole completion is the argmax at every position, which is the
    same as an exact greedy generation."""
    right, count = {}, {}
    for (ids, labels), skills in batches:
        ids, labels = ids.to(device), labels.to(device)
        logits, _, _ = net(ids, quantise)
        good = ((logits.argmax(-1) == labels) | (labels == IGNORE)).all(-1).tolist()
        for skill, ok in zip(skills, good):
            right[skill] = right.get(skill, 0) + ok
            count[skill] = count.get(skill, 0) + 1
    return {skill: right[skill] / count[skill] for skill in count}


def learning_rate(progress, peak, warmup=0.02, hold=0.55):
    if progress < warmup:
        return peak * progress / warmup
    if progress < hold:
        return peak
    return peak * max(0.01, 1 - (progress - hold) / (1 - hold))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--start", help="checkpoint folder to go on from")
    parser.add_argument("--focus", action="store_true", help="second stage: the mix that is mostly about copying")
    parser.add_argument("--report", type=int, default=200, help="steps between progress lines")
    parser.add_argument("--tokens", type=int, default=24576, help="padded tokens in a batch")
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--peak", type=float, default=1.5e-3)
    parser.add_argument("--quantise-from", type=float, default=0.3)
    parser.add_argument("--balance", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--eval-every", type=float, default=60)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    os.makedirs(args.out, exist_ok=True)
    net = tiny.TandemTiny()
    if args.start:
        export.load(net, args.start)
    net.to(device)
    print("%.2f M parameters on %s" % (sum(p.numel() for p in net.parameters()) / 1e6, device), flush=True)
    decay = [p for p in net.parameters() if p.dim() > 1]
    plain = [p for p in net.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                                  lr=args.peak, betas=(0.9, 0.98), fused=device == "cuda")
    path = os.path.join(args.model, "tokenizer.json")
    encoder = tokenizer.Encoder(path)
    held = heldout_batches(encoder, args.model)
    stream = torch.utils.data.DataLoader(Stream(path, args.tokens, args.seed, args.longest, args.focus), batch_size=None, num_workers=args.workers,
                                         pin_memory=device == "cuda", prefetch_factor=8 if args.workers else None)
    autocast = lambda: torch.autocast(device, dtype=torch.bfloat16)
    started = last_eval = time.time()
    step, seen, shown = 0, 0, time.time()
    running = torch.zeros(3, device=device)
    for ids, labels in stream:
        progress = (time.time() - started) / args.seconds
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, args.peak)
        quantise = progress >= args.quantise_from
        positions = (labels.flatten() != IGNORE).nonzero().flatten()
        wanted = labels.flatten()[positions].to(device, non_blocking=True)
        with autocast():
            logits, balance, shares = net(ids.to(device, non_blocking=True), quantise, positions.to(device, non_blocking=True))
        logits = logits.float()
        loss = F.cross_entropy(logits, wanted)
        optimizer.zero_grad(set_to_none=True)
        (loss + args.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step, seen = step + 1, seen + int((ids >= 0).sum())
        running += torch.stack([loss.detach(), (logits.argmax(-1) == wanted).float().mean(), balance.detach() / len(net.layers)])
        if step % args.report == 0:
            mean = (running / args.report).tolist()
            print("step %6d  %5.1f s  %6.2f Mtok/s  loss %.4f  token acc %.5f  balance %.3f  lr %.1e%s" % (
                step, time.time() - started, seen / (time.time() - started) / 1e6, mean[0], mean[1], mean[2],
                optimizer.param_groups[0]["lr"], "  mxfp4" if quantise else ""), flush=True)
            running.zero_()
        if time.time() - last_eval > args.eval_every:
            last_eval = time.time()
            with autocast():
                scores = exact_match(net, held, device, quantise)
            print("  exact " + "  ".join("%s %.3f" % pair for pair in sorted(scores.items())), flush=True)
            print("  expert shares " + " | ".join(" ".join("%.2f" % x for x in row) for row in shares.tolist()), flush=True)
            export.save(net, args.out)
    with autocast():
        scores = exact_match(net, held, device, True)
    export.save(net, args.out)
    print("done: %d steps, %.1f M tokens" % (step, seen / 1e6))
    print("  exact " + "  ".join("%s %.3f" % pair for pair in sorted(scores.items())), flush=True)


if __name__ == "__main__":
    main()
