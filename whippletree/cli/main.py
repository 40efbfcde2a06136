"""The `whippletree` command: one module per command, each with a help that teaches."""

import typer

from whippletree.cli import demo, doctor, keys, record, rollouts, train, up

app = typer.Typer(
    name="whippletree",
    help="Reinforcement learning through real agent harnesses. Begin with `whippletree doctor`, then `demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)
app.command()(up.up)
app.command()(train.train)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.add_typer(rollouts.app, name="rollouts")
app.add_typer(record.app, name="record")
app.add_typer(keys.app, name="keys")


if __name__ == "__main__":
    app()
