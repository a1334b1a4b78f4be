"""Runs test functions against a service. Lines and closing line are as cmocka's."""

import argparse
import os
import sys
import time
import traceback

from service import Service


def main(names, prefix, context_of, *router_options):
    """Those of names that begin with prefix, or that the command line asks for, on one context: context_of(service,
    slow), which is closed at the end. The exit code."""
    args = argparse.ArgumentParser()
    args.add_argument("--bin", required=True)
    args.add_argument("--slow", action="store_true")
    args.add_argument("cases", nargs="*")
    args = args.parse_args()
    cases = [(n, f) for n, f in names.items() if n.startswith(prefix)
             and (not args.cases or n in args.cases)]
    if not cases:
        sys.exit(f"no such case: {' '.join(args.cases)}")
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
    failed = []
    with Service(args.bin, 60 if args.slow else 15, *router_options) as service:
        context = context_of(service, args.slow)
        for name, case in cases:
            print(f"[ RUN      ] {name}", flush=True)
            started = time.monotonic()
            try:
                case(context)
                took = time.monotonic() - started
                print(f"[       OK ] {name} ({took * 1000:.0f} ms)", flush=True)
            except Exception:
                traceback.print_exc(file=sys.stdout)
                print(f"[  FAILED  ] {name}", flush=True)
                failed.append(name)
        if failed:
            service.show_logs()
        context.close()
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0
