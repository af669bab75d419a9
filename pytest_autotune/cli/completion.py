"""``pytest-autotune completion``: what makes a shell complete the command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion", short_help="what makes a shell complete this command")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what makes a SHELL complete this command.

    \b
    bash: pytest-autotune completion bash > ~/.local/share/bash-completion/completions/pytest-autotune
    zsh:  pytest-autotune completion zsh > a file named _pytest-autotune in a folder of $fpath
    fish: pytest-autotune completion fish > ~/.config/fish/completions/pytest-autotune.fish
    """
    root = click.get_current_context().find_root()
    completion = get_completion_class(shell)
    assert completion is not None
    name = root.info_name or ""
    click.echo(completion(root.command, {}, name, f"_{name}_COMPLETE".replace("-", "_").upper()).source())
