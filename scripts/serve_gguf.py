"""Serve a GGUF over HTTP on loopback, as an OpenAI-compatible server, until SIGTERM or SIGINT; needs ``xllamacpp``.

Prints the base URL as its first line, once the server answers::

    python scripts/serve_gguf.py smollm2-135m --name smollm2-135m-instruct --port 8080
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from mdl_torch.generation.weights import PACKAGES, packaged_gguf


def main() -> None:
    """Start, print the URL, wait for a signal, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", help="weights: a file, or the name of a model that comes as a package")
    parser.add_argument("--name", help="model name of the server; by default the file's name")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--context", type=int, default=2048, help="tokens of one prompt with its answer")
    parser.add_argument("--parallel", type=int, default=2, help="requests answered at once")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    gguf = packaged_gguf(args.gguf) if args.gguf in PACKAGES else Path(args.gguf)
    if not gguf.is_file():
        parser.error(f"gguf must be a file or one of {', '.join(PACKAGES)}, got {args.gguf}")

    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # the server's own threads inherit it, so that only we get them

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.model_alias = {args.name or gguf.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_ctx = args.context * args.parallel
    params.n_parallel = args.parallel
    params.cpuparams.n_threads = args.threads
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    signal.sigwait(stops)
    os._exit(0)  # its own shutdown, which keeps nothing, now and then waits for ever


if __name__ == "__main__":
    main()
