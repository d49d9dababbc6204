"""`assay engine`: an engine without a GPU."""

from __future__ import annotations

from dataclasses import replace
from threading import Timer
from typing import TYPE_CHECKING, Any

import click

from assay.record.errors import BadInput
from assay.record.extras import missing_module

if TYPE_CHECKING:
    from assay.live.mock_board import Settings


@click.command(epilog="Example:  assay engine --model qwen3-8b --gpu h200 --port 8001 --kv-events tcp://127.0.0.1:5557")
@click.option("--model", default="qwen3-8b", show_default=True, help="A model of the serving room.")
@click.option("--gpu", default="h200", show_default=True, help="The GPU it would run on.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="GPUs that each layer is cut over.")
@click.option(
    "--layout", metavar="GPU:MODEL[:tpN]", help="All three at once, as in --fleet of 'assay compare serving'."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0: any free one.")
@click.option("--served-model-name", help="What clients call the model (default: its own name).")
@click.option("--max-num-seqs", type=click.IntRange(1), default=256, show_default=True, help="Sequences in a batch.")
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(1), default=8192, show_default=True, help="Tokens in an iteration."
)
@click.option(
    "--max-model-len",
    type=click.IntRange(2),
    default=131072,
    show_default=True,
    help="Tokens of a prompt and its answer.",
)
@click.option("--kv-tokens", type=click.IntRange(1), help="Room for KV (default: what the GPU has left).")
@click.option("--block-size", type=click.IntRange(1, 1024), default=16, show_default=True, help="Tokens in a KV block.")
@click.option(
    "--speed",
    type=click.FloatRange(0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="How fast its clock runs.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the text, and of what befalls which request.")
@click.option("--no-prefix-caching", is_flag=True, help="Compute every prompt anew.")
@click.option("--enable-prompt-tokens-details", is_flag=True, help="Tell in 'usage' how much of a prompt was cached.")
@click.option("--kv-events", metavar="ENDPOINT", help="Publish what the prefix cache holds, over ZeroMQ.")
@click.option("--kv-events-replay", metavar="ENDPOINT", help="Where past events can be asked for.")
@click.option("--order", help="Who is admitted first: fcfs (default), sjf, …, or file.py:Class.")
@click.option(
    "--fault", multiple=True, metavar="KIND:SHARE",
    help="crash:0.01, crash@5, hang:0.05, slow:0.1:3, error:0.1:503, disconnect:0.1, spoil:0.1:0.5, refuse:0.1.",
)  # fmt: skip
@click.option("--instant", is_flag=True, help="Answer at once, to measure what stands in front of it.")
def command(host: str, port: int, **told: Any) -> None:
    """Serve the OpenAI API with the simulator's times and made-up text: an engine to try routers on, without a GPU.

    It answers as vLLM does, with vLLM's metrics, prefix cache and KV events. On a core of its own a token leaves within
    0.4 ms of its simulated time, within 1 ms where 32 streams have theirs at once, and within 4 ms where 200 have.
    """
    try:
        import uvloop

        from assay.live import mock_serve
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("the mock engine", error)) from None
    settings = _settings(**told)
    what = "answers at once" if settings.instance is None else _described(settings)

    patience = Timer(
        3.0, click.echo, ("compiling the simulator, once after an installation: about a minute",), {"err": True}
    )
    patience.daemon = True

    def ready(running: mock_serve.Running) -> None:
        patience.cancel()
        click.echo(f"assay engine on http://{host}:{running.port}: {what}", err=True)
        if host not in ("127.0.0.1", "::1", "localhost"):
            click.echo("warning: it listens beyond this machine, and anyone there can set faults", err=True)

    patience.start()
    try:
        uvloop.run(mock_serve.run(settings, host, port, ready))
    finally:
        patience.cancel()


def _settings(
    model: str, gpu: str, tp: int, layout: str | None, served_model_name: str | None, instant: bool, order: str | None,
    no_prefix_caching: bool, enable_prompt_tokens_details: bool, kv_events: str | None, kv_events_replay: str | None,
    fault: tuple[str, ...], **sizes: Any,
) -> Settings:  # fmt: skip
    from assay.live.mock_board import Settings
    from assay.live.mock_faults import parse

    for spec in fault:
        parse(spec)
    if kv_events_replay and not kv_events:
        raise BadInput("--kv-events-replay needs --kv-events")
    if kv_events and instant:
        raise BadInput("--kv-events tells of a cache, and with --instant there is none")
    name = layout or f"{gpu}:{model}" + (f":tp{tp}" if tp > 1 else "")
    instance = None if instant else _instance(name, sizes)
    return Settings(
        model=served_model_name or (instance.model if instance else model), instance=instance,
        block=sizes["block_size"], max_model_len=sizes["max_model_len"], speed=sizes["speed"], seed=sizes["seed"],
        prefix_caching=not no_prefix_caching, prompt_details=enable_prompt_tokens_details,
        kv_events=kv_events, kv_replay=kv_events_replay, faults=fault, order=_order(order),
    )  # fmt: skip


def _instance(name: str, sizes: dict[str, Any]) -> Any:
    from assay.serving.fleet import FleetSpec, check, parse

    (instance,) = parse(f"1x{name}", block=sizes["block_size"]).instances
    instance = replace(
        instance, max_seqs=sizes["max_num_seqs"], max_tokens=sizes["max_num_batched_tokens"],
        kv_tokens=sizes["kv_tokens"] or 0,
    )  # fmt: skip
    check(FleetSpec((instance,), block=sizes["block_size"]))
    return instance


def _order(name: str | None) -> Any:
    if name is None:
        return None
    from assay.serving.engine.components import order

    return order(name)


def _described(settings: Settings) -> str:
    assert settings.instance is not None
    instance = settings.instance
    gpus = f"{instance.gpus} × " if instance.gpus > 1 else ""
    speed = f", {settings.speed:g} times as fast" if settings.speed != 1.0 else ""
    called = f" as {settings.model}" if settings.model != instance.model else ""
    where = f"{gpus}{instance.name.split(':')[0]}"
    return f"{instance.model}{called} on {where}, room for {instance.room:,} tokens of KV{speed}"
