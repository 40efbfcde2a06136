"""`whippletree up`: the whole system on this machine, in the foreground."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from whippletree.cli import endpoints, identity
from whippletree.cli.console import OUT, report, run
from whippletree.cli.engine import Device
from whippletree.cli.project import DEFAULT_RUN_DIR
from whippletree.cli.system import Options, System, system


def up(
    model: Annotated[
        Path, typer.Option(help="Hugging Face directory of the policy: config.json, weights, tokenizer.json.")
    ],
    run_dir: Annotated[Path, typer.Option(help="Folder for endpoints.json, record.db and logs/.")] = DEFAULT_RUN_DIR,
    name: Annotated[str, typer.Option(help="Name under which harnesses ask for the model.")] = "policy",
    port: Annotated[
        int, typer.Option(help="Envoy's port: HTTP, gRPC and gRPC-Web; 0 = any free one.", min=0, max=65535)
    ] = 8080,
    device: Annotated[Device, typer.Option(help="auto, cpu or cuda: where the engine computes.")] = "auto",
    engine: Annotated[str, typer.Option(help="URL of an SGLang that runs already; none is started then.")] = "",
    engine_port: Annotated[int, typer.Option(help="The engine's port; 0 = any free one.", min=0, max=65535)] = 0,
    gateway_port: Annotated[int, typer.Option(help="The gateway's port; 0 = any free one.", min=0, max=65535)] = 0,
    bridge_port: Annotated[int, typer.Option(help="The bridge's port; 0 = any free one.", min=0, max=65535)] = 0,
    controller_port: Annotated[
        int, typer.Option(help="The controller's port; 0 = any free one.", min=0, max=65535)
    ] = 0,
    together: Annotated[
        bool,
        typer.Option(
            "--together/--separate",
            help="Gateway and bridge as one process: less work a call, but harnesses see it when it is restarted.",
        ),
    ] = False,
    insecure_dev: Annotated[
        bool, typer.Option("--insecure-dev", help="Ask nobody for a key or a token; everything stays on the loopback.")
    ] = False,
    otlp: Annotated[
        str,
        typer.Option(
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="OpenTelemetry collector that gets traces, http://host:port of its OTLP over gRPC; empty = none.",
        ),
    ] = "",
) -> None:
    """Start engine, gateway, bridge, controller and Envoy, and keep them running until Ctrl-C.

    Each part is a process group with its own file RUN_DIR/logs/NAME.log; one that dies is started again on its port.
    RUN_DIR/endpoints.json says where everything is, RUN_DIR/operator.key holds the key for it, made at the first start.
    Ctrl-C or SIGTERM stops all in reverse order and leaves nothing.

    Example: whippletree up --model .cache/quickstart/model --port 0
    """
    options = Options(
        model_dir=model,
        run_dir=run_dir,
        model_name=name,
        port=port,
        device=device,
        engine_url=engine,
        engine_port=engine_port,
        gateway_port=gateway_port,
        bridge_port=bridge_port,
        controller_port=controller_port,
        together=together,
        insecure_dev=insecure_dev,
        otlp=otlp,
    )
    run(_up(options), on_sigterm=0)


async def _up(options: Options) -> None:
    async with system(options, report) as running:
        await running.start()
        await running.during(_stay(running, options.run_dir))


async def _stay(running: System, run_dir: Path) -> None:
    await running.engine_ready()
    OUT.print(f"\nAPI        {running.layout.api}", markup=False)
    OUT.print(f"addresses  {endpoints.path(run_dir)}", markup=False)
    if not running.layout.insecure_dev:
        OUT.print(f"key        {identity.operator_file(run_dir)}", markup=False)
    OUT.print("Train with `whippletree train CONFIG`, look with `whippletree rollouts list`, stop with Ctrl-C.")
    await asyncio.Event().wait()
